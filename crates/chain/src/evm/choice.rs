//! Chooses the node to ask next.
//!
//! Guarantees: pure. Skips nodes that rest, lag, or have already answered this request; of the others it takes the
//! least busy relative to its weight. Leaves to others: asking, and waiting.

use std::time::Duration;

/// An older head is refreshed before its node is considered lagging.
const HEAD_FRESH: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// It has already answered this request.
    pub(super) answered: bool,
    /// Remaining rest.
    pub(super) rest: Option<Duration>,
    /// The newest block it reported, and how long ago.
    pub(super) head: Option<(u64, Duration)>,
    /// The node with the lowest load is asked.
    pub(super) load: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Ask(usize),
    /// Ask these for their heads: they may have caught up.
    Refresh(Vec<usize>),
    /// Wait for a resting node.
    Wait(Duration),
    /// No node can be asked.
    Exhausted,
}

/// Chooses a node for block `number`, or for any request if that is `None`.
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
    // While an awake node reports that the block does not exist yet, a node that never reported a head is not waited
    // for.
    let told = awake().next().is_some();
    let worth = |node: &Candidate| !lags(node) && (node.head.is_some() || !told);
    let resting = open().filter(|(_, node)| worth(node)).filter_map(|(_, node)| node.rest);
    resting.min().map_or(Choice::Exhausted, Choice::Wait)
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
        assert_eq!(choose(&nodes(Duration::ZERO), Some(10)), Choice::Exhausted);
    }

    #[test]
    fn the_first_to_wake_is_waited_for_if_it_may_help() {
        let resting = |rest, head| Candidate { rest: Some(rest), head, ..NODE };
        let both = [resting(3 * SECOND, None), resting(2 * SECOND, None)];
        assert_eq!(choose(&both, Some(10)), Choice::Wait(2 * SECOND));
        let lagging = Candidate { head: Some((9, Duration::ZERO)), ..NODE };
        let unknown = [lagging.clone(), resting(SECOND, None)];
        assert_eq!(choose(&unknown, Some(10)), Choice::Exhausted);
        let ahead = [lagging, resting(SECOND, Some((12, SECOND)))];
        assert_eq!(choose(&ahead, Some(10)), Choice::Wait(SECOND));
        assert_eq!(choose(&[], Some(10)), Choice::Exhausted);
    }
}
