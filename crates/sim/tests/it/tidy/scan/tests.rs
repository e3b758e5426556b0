//! Tests of the scanner with small pieces of source.

use super::*;

/// Checks the code and the comments of `source`, with whitespace collapsed.
#[track_caller]
fn check_split(source: &str, code: &str, comments: &str) {
    let scan = Scan::new(source);
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeeze(&scan.code), code, "code of {source:?}");
    assert_eq!(squeeze(&scan.comments), comments, "comments of {source:?}");
    assert_eq!(scan.code.len(), source.len(), "length of {source:?}");
    assert_eq!(scan.code.lines().count(), source.lines().count(), "lines of {source:?}");
}

/// Checks the functions with a body in `source`.
#[track_caller]
fn check_functions(source: &str, expected: &[(&str, usize)]) {
    let found = Scan::new(source).functions();
    let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.lines)).collect();
    assert_eq!(found, expected, "functions of {source:?}");
}

/// Checks the lines of `source`, counted from zero and half-open, that belong only to tests.
#[track_caller]
fn check_tests(source: &str, expected: &[(usize, usize)]) {
    let found = Scan::new(source).test_lines();
    let found: Vec<_> = found.iter().map(|lines| (lines.start, lines.end)).collect();
    assert_eq!(found, expected, "test lines of {source:?}");
}

#[test]
fn comments_and_literals_are_separated_from_code() {
    for (source, code, comments) in [
        ("", "", ""),
        ("let a = 1; // one", "let a = 1;", "// one"),
        ("a /* b /* c */ d */ e", "a e", "/* b /* c */ d */"),
        ("a /* never closed {", "a", "/* never closed {"),
        ("//! {\nfn", "fn", "//! {"),
        ("f(\"// no { comment\")", "f( )", ""),
        (r#"f("a \" { b") }"#, "f( ) }", ""),
        (r#"f("a \\") }"#, "f( ) }", ""),
        ("f(\"two\nlines {\") }", "f( ) }", ""),
        (r##"f(r"\") }"##, "f( ) }", ""),
        (r###"f(r#"a " { "#) }"###, "f( ) }", ""),
        (r####"f(br##"a "# { "##) }"####, "f( ) }", ""),
        (r#"f(b"{", c"{") }"#, "f( , ) }", ""),
        ("let r#fn = r#type;", "let r#fn = r#type;", ""),
        ("for_r\"{\"", "for_r", ""),
        ("f('{', '\\'', '\"', '\\u{7b}', b'{', b'\\'') }", "f( , , , , , ) }", ""),
        ("f('é', '→', '🦀') }", "f( , , ) }", ""),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}", ""),
        ("'outer: loop { break 'outer; }", "'outer: loop { break 'outer; }", ""),
        ("f::<'_>('a')", "f::<'_>( )", ""),
        ("\"never closed {", "", ""),
        ("é // ü", "é", "// ü"),
    ] {
        check_split(source, code, comments);
    }
}

#[test]
fn functions_are_found_with_their_length() {
    for (source, expected) in [
        ("fn f() {}", &[("f", 1)][..]),
        ("fn f() {\n  1\n}\n", &[("f", 3)]),
        ("pub(crate) async fn f<T>(\n  t: T,\n) -> T\nwhere\n  T: A,\n{\n  t\n}", &[("f", 8)]),
        ("trait T { fn f(&self); fn g(&self) { } }", &[("g", 1)]),
        ("fn f() -> [u8; { 1 + 1 }] {\n}", &[("f", 2)]),
        ("fn f(g: fn(u8) -> u8) {\n}", &[("f", 2)]),
        ("type F = fn(u8) -> u8;", &[]),
        ("fn f() {\n fn g() {\n }\n}", &[("f", 4), ("g", 2)]),
        ("fn r#match() {}", &[("r#match", 1)]),
        ("// fn f() {\nlet s = \"fn g() {}\";", &[]),
        ("fn f() { '}'; \"}\"; /* } */\n}", &[("f", 2)]),
        ("let fnord = define_fn();", &[]),
        ("macro_rules! m { ($n:ident) => { fn $n() {} } }", &[]),
        ("fn f() {\n never closed", &[]),
    ] {
        check_functions(source, expected);
    }
}

#[test]
fn test_items_are_found_with_their_lines() {
    for (source, expected) in [
        ("fn f() {}", &[][..]),
        ("fn f() {}\n#[cfg(test)]\nmod tests {\n  fn g() {}\n}\nfn h() {}", &[(1, 5)]),
        ("#[cfg(test)]\nmod tests;\nfn f() {}", &[(0, 2)]),
        ("#[cfg(test)]\n#[path = \"{\"]\nuse a::b;\nfn f() {}", &[(0, 3)]),
        ("#[cfg(test)]\nfn f(a: [u8; 2]) {\n}\n", &[(0, 3)]),
        ("#![cfg(test)]\nfn f() {}", &[(0, 2)]),
        ("// #[cfg(test)]\nfn f() {}", &[]),
    ] {
        check_tests(source, expected);
    }
}

#[test]
fn words_are_whole() {
    let scan = Scan::new("select! { } select_biased! {} reselect! {} x::select! {} \"select\"");
    assert_eq!(scan.words("select").count(), 2);
}

#[test]
fn attributes_are_found_whole() {
    let scan = Scan::new("#[a(b[0], c)]\n#[doc = \"]\"] // #[no]\nfn f() {}");
    let squeezed: Vec<_> = scan.attributes().iter().map(|inside| inside.trim()).collect();
    assert_eq!(squeezed, ["a(b[0], c)", "doc ="]);
}

#[test]
fn tests_are_found_with_their_path() {
    for (source, expected) in [
        ("#[test]\nfn a() {}\nfn b() {}", &["a"][..]),
        ("#[tokio::test(start_paused = true)]\n#[should_panic]\nasync fn a() {}", &["a"]),
        (
            "mod t {\n  mod u {\n    #[test]\n    fn a() {}\n  }\n  #[test]\n  fn b() {}\n}",
            &["t::u::a", "t::b"],
        ),
        ("mod t;\n#[test]\nfn a() { mod u {} }", &["a"]),
        ("// #[test]\n#[cfg(test)]\nfn a() {}", &[]),
        ("proptest! {\n  #[test]\n  fn a(x in 0..9) {}\n}", &["a"]),
    ] {
        assert_eq!(Scan::new(source).tests(), expected, "{source}");
    }
    assert_eq!(Scan::new("each![\n  a,\n  b,\n]; // each![c]").macro_words("each!"), ["a", "b"]);
}
