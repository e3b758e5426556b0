//! How many files and sockets this process may have open.
//!
//! The usual limit of 1024 is there for programs that can not count further. A server that has many clients, delivers
//! to many receivers and reads many blobs needs more.
//!
//! Guarantees: the limit is as high as this process may set it by itself; what can not be raised stays. Leaves to
//! others: how many connections there are.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as possible; gives what it is then, none if there is none.
pub fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_is_allowed() {
        let allowed = getrlimit(Resource::Nofile).maximum;
        let low = Rlimit { current: Some(200), maximum: allowed };
        setrlimit(Resource::Nofile, low).expect("a lower limit");
        assert_eq!(raise_open_files(), allowed);
        assert_eq!(getrlimit(Resource::Nofile).current, allowed);
        assert_eq!(raise_open_files(), allowed);
    }
}
