//! Which node is asked next.
//!
//! Guarantees: pure. A node that rests, lags, or has given its answer already is not asked; of the others the least
//! busy for its weight is. Leaves to others: asking, and waiting.

use std::time::Duration;

/// A head that is older than this is asked for again before a node is taken to lag.
const HEAD_FRESH: Duration = Duration::from_millis(500);

/// What is known of a node.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// It has given its answer to this question already.
    pub(super) answered: bool,
    /// How much longer it rests.
    pub(super) rest: Option<Duration>,
    /// The newest block that it told of, and how long ago.
    pub(super) head: Option<(u64, Duration)>,
    /// How busy it is.
    pub(super) load: (u64, u64),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Ask this node.
    Ask(usize),
    /// Ask these for their heads: they may have caught up.
    Refresh(Vec<usize>),
    /// Wait for one that rests.
    Wait(Duration),
    /// There is nobody to ask.
    Nobody,
}

/// Decides whom to ask for block `number`, or for anything if there is none.
pub(super) fn choose(nodes: &[Candidate], number: Option<u64>) -> Choice {
    let open = || nodes.iter().enumerate().filter(|(_, node)| !node.answered);
    let awake = || open().filter(|(_, node)| node.rest.is_none());
    let lags = |node: &Candidate| match (node.head, number) {
        (Some((head, _)), Some(number)) => head < number,
        _ => false,
    };
    let able = awake().filter(|(_, node)| !lags(node));
    if let Some((index, _)) = able.min_by_key(|(index, node)| (node.load, *index)) {
        return Choice::Ask(index);
    }
    let stale = awake().filter(|(_, node)| node.head.is_some_and(|(_, age)| age > HEAD_FRESH));
    let stale: Vec<usize> = stale.map(|(index, _)| index).collect();
    if !stale.is_empty() {
        return Choice::Refresh(stale);
    }
    // While some node tells that the block does not exist yet, one that never said that it does is not waited for.
    let told = awake().next().is_some();
    let worth = |node: &Candidate| !lags(node) && (node.head.is_some() || !told);
    let resting = open().filter(|(_, node)| worth(node)).filter_map(|(_, node)| node.rest);
    resting.min().map_or(Choice::Nobody, Choice::Wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Candidate = Candidate { answered: false, rest: None, head: None, load: (1, 0) };
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_least_busy_that_is_awake_and_has_the_block_is_asked() {
        let fresh = Duration::ZERO;
        let nodes = [
            Candidate { load: (0, 0), answered: true, ..NODE },
            Candidate { load: (1, 0), rest: Some(SECOND), ..NODE },
            Candidate { load: (2, 0), head: Some((9, fresh)), ..NODE },
            Candidate { load: (4, 0), head: Some((10, fresh)), ..NODE },
            Candidate { load: (3, 5), ..NODE },
            Candidate { load: (3, 4), ..NODE },
        ];
        assert_eq!(choose(&nodes, Some(10)), Choice::Ask(5));
        assert_eq!(choose(&nodes[..4], Some(10)), Choice::Ask(3));
        assert_eq!(choose(&nodes, None), Choice::Ask(2));
    }

    #[test]
    fn nodes_that_lag_are_asked_for_their_heads_once() {
        let nodes = |age| [Candidate { head: Some((9, age)), ..NODE }];
        assert_eq!(choose(&nodes(SECOND), Some(10)), Choice::Refresh(vec![0]));
        assert_eq!(choose(&nodes(Duration::ZERO), Some(10)), Choice::Nobody);
    }

    #[test]
    fn the_first_to_wake_is_waited_for_if_it_may_help() {
        let resting = |rest, head| Candidate { rest: Some(rest), head, ..NODE };
        let both = [resting(3 * SECOND, None), resting(2 * SECOND, None)];
        assert_eq!(choose(&both, Some(10)), Choice::Wait(2 * SECOND));
        let lagging = Candidate { head: Some((9, Duration::ZERO)), ..NODE };
        let unknown = [lagging.clone(), resting(SECOND, None)];
        assert_eq!(choose(&unknown, Some(10)), Choice::Nobody);
        let ahead = [lagging, resting(SECOND, Some((12, SECOND)))];
        assert_eq!(choose(&ahead, Some(10)), Choice::Wait(SECOND));
        assert_eq!(choose(&[], Some(10)), Choice::Nobody);
    }
}
