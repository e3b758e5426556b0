//! The limit on open files and sockets of this process.
//!
//! The usual soft limit of 1024 exists for programs that use `select`. A server with many clients, webhook
//! receivers and blobs needs more.
//!
//! Guarantees: the soft limit is raised to the hard limit if that is permitted. Leaves to others: how many
//! connections there are.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as possible; returns the new limit, `None` if unlimited.
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
    fn the_limit_is_raised_to_the_maximum() {
        let allowed = getrlimit(Resource::Nofile).maximum;
        let low = Rlimit { current: Some(200), maximum: allowed };
        setrlimit(Resource::Nofile, low).expect("a lower limit");
        assert_eq!(raise_open_files(), allowed);
        assert_eq!(getrlimit(Resource::Nofile).current, allowed);
        assert_eq!(raise_open_files(), allowed);
    }
}
