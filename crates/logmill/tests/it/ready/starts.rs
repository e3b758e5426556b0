//! Starts: a node that is not there yet holds up nothing else, and what a start needs is named when it is missing.

use super::*;

#[test]
fn a_node_that_is_away_at_the_start_takes_neither_usage_nor_stored_chains_with_it() {
    let (mut node, socket) = Node::silent(40, 5);
    let place = place(&[]);
    // Nobody knows yet which chain it is.
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_for(&server, "chain_unknown", &["meter"]);
    assert_eq!(send(&server, "without a chain"), 201);
    node.answer(socket);
    wait_until_ready(&server);
    assert_eq!(server.rpc().head(), 40, "the chain was found and is served");
    let (status, _) = request(at(&server), "GET", "/api/v1/1337/blocks/17", "").expect("an answer");
    assert_eq!(status, 200);
    assert!(server.terminate().success());
    // Now it is stored.
    node.kill();
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_for(&server, "node_silent", &["meter"]);
    assert_eq!(server.rpc().head(), 40, "what is stored is served");
    assert_eq!(send(&server, "without a node"), 201);
    assert!(server.terminate().success());
}

#[test]
fn a_node_that_is_of_another_chain_is_refused_at_the_start() {
    let node = Node::start(10, 5);
    let refused = place(&["chain.id=5"]).run(&["run", "--rpc-url", &node.url()]);
    refused.refused(1, &["1337", "5"]);
}

#[test]
fn a_preflight_names_what_is_fine_and_what_is_not() {
    let mut node = Node::start(10, 5);
    let urls = format!("chain.rpc_urls={}", node.url());
    let place = place(&[&urls]);
    let fine = place.run(&["preflight"]);
    let said = fine.answer();
    for part in ["data folder", "database", "blob store", "node", "chain 1337"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let left: Vec<_> = std::fs::read_dir(place.data()).expect("a folder").flatten().collect();
    assert!(left.iter().all(|file| !file.file_name().to_string_lossy().contains("preflight")));
    let server = place.serve();
    let beside = place.run(&["preflight"]);
    assert!(beside.answer().contains("in use"), "{beside:?}");
    assert!(server.terminate().success());
    node.kill();
    let refused = place.run(&["preflight"]);
    refused.refused(1, &["node"]);
    assert!(refused.stdout.contains("chain.rpc_urls"), "{refused:?}");
}

#[test]
fn a_disk_with_too_little_room_takes_everything_away() {
    let place = place(&["ready.free_disk_mib=1073741824"]);
    let server = place.serve();
    wait_for(&server, "disk_low", &[]);
    assert!(server.terminate().success());
}

#[test]
fn a_service_that_is_not_configured_says_so_at_its_own_path_alone() {
    let place = Place::with(&["database.durability=relaxed", "ready.free_disk_mib=0"]);
    let server = place.serve();
    wait_until_ready(&server);
    assert_eq!(ready(&server, "/meter"), (503, vec!["not_served".to_owned()]));
    assert_eq!(ready(&server, "/rpc"), (503, vec!["not_served".to_owned()]));
    let (status, _) = request(at(&server), "GET", "/ready/elsewhere", "").expect("an answer");
    assert_eq!(status, 404);
    assert!(server.terminate().success());
}
