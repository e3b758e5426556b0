//! The help texts equal `help.txt`, so that a change is seen in review. `UPDATE=1` rewrites the file.

use std::path::Path;

use crate::process::{LOGMILL, command, finish};

#[test]
fn the_help_texts_equal_the_checked_file() {
    let mut texts = String::new();
    collect(&mut Vec::new(), &mut texts);
    let file = logmill_sim::workspace_root().join("crates/logmill/tests/it/help.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &texts).expect("written");
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(texts, expected, "run this test with UPDATE=1 if the change is meant");
}

/// The help of a command and its subcommands.
fn collect(path: &mut Vec<String>, texts: &mut String) {
    let ended = finish(command(LOGMILL, Path::new("/")).args(&*path).arg("--help"));
    let help = ended.answer();
    texts.push_str(&format!(
        "$ logmill{}{}\n{help}\n\n",
        " ".repeat(usize::from(!path.is_empty())),
        path.join(" ")
    ));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next());
    for name in names {
        path.push(name.to_owned());
        collect(path, texts);
        path.pop();
    }
}
