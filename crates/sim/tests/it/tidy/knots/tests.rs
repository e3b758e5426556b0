//! Tests of the module graph with small crates.

use super::*;

/// Checks the knots of a crate of `files`, named by their path below `src`.
#[track_caller]
fn check(files: &[(&str, &str)], expected: &[(&str, &str)]) {
    let file = |(path, text): &(&str, &str)| TextFile {
        path: format!("crates/io/src/{path}"),
        text: (*text).to_owned(),
    };
    let sources: Vec<_> = files.iter().map(file).collect();
    let knots: Vec<_> = ModuleTree::all(&sources).iter().flat_map(ModuleTree::knots).collect();
    let modules = |knot: &Knot| knot.modules.iter().cloned().collect::<Vec<_>>().join(" ");
    let found: Vec<_> = knots.iter().map(|knot| (knot.parent.clone(), modules(knot))).collect();
    let expected: Vec<_> =
        expected.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect();
    assert_eq!(found, expected, "{files:?}");
}

const ROOT: (&str, &str) = ("lib.rs", "mod a;\npub mod b;\nmod c;");
const TIED: &[(&str, &str)] = &[("io", "a b")];

#[test]
fn modules_that_name_each_other_are_a_knot() {
    let check = |a, b, expected| check(&[ROOT, ("a.rs", a), ("b.rs", b), ("c.rs", "")], expected);
    for (a, b) in [
        ("use crate::b::B;", "use crate::a::A;"),
        ("use super::b::B;", "use super::a::A;"),
        ("use super::{c::C, b::{self, B}};", "use crate::{\n    a::A as Other,\n    c,\n};"),
        ("fn f() { super::b::f() }", "fn f() -> crate::a::A { loop {} }"),
        ("use super::b;", "type A = Vec<crate::a::A>;"),
        ("pub(crate) use crate::b::*;", "pub(in crate::b) use crate::a::{};use crate::a::A;"),
    ] {
        check(a, b, TIED);
        check(a, "use crate::c::C; use super::C;", &[]);
        check("use self::b::B; use b::B; use ::b::B; use std::b::B;", b, &[]);
        check("fn f<'a>() -> impl T + use<'a> { x.b(); b::f() }", b, &[]);
    }
}

#[test]
fn a_knot_may_lead_through_several_modules() {
    let (a, b) = (("a.rs", "use crate::b;"), ("b.rs", "use crate::c;"));
    check(&[ROOT, a, b, ("c.rs", "use crate::a;")], &[("io", "a b c")]);
    check(&[ROOT, a, b, ("c.rs", "use crate::b;")], &[("io", "b c")]);
}

#[test]
fn a_knot_may_lead_through_a_re_export() {
    let root = ("lib.rs", "mod a;\nmod b;\npub use self::a::A;\npub(crate) use a::Inner as Other;");
    let (a, c) = (("a.rs", "mod c;\npub use self::c::Inner;\nuse crate::b::B;"), ("a/c.rs", ""));
    check(&[root, a, c, ("b.rs", "use crate::A;")], TIED);
    check(&[root, a, c, ("b.rs", "use super::{Other};")], TIED);
    check(&[root, a, c, ("b.rs", "use crate::Inner;")], &[]);
    // A name that is exported in a circle ends somewhere.
    let root = ("lib.rs", "mod a;\nmod b;\npub use a::A;");
    check(&[root, ("a.rs", "pub use crate::A;"), ("b.rs", "use crate::A;")], &[]);
}

#[test]
fn modules_count_with_everything_below_them() {
    let (a, b, c) = (("a.rs", "mod d; mod e;"), ("b.rs", "use crate::a;"), ("c.rs", ""));
    check(&[ROOT, a, b, c, ("a/d.rs", "use super::super::b::B;"), ("a/e.rs", "")], TIED);
    let (d, e) = (("a/d.rs", "use super::e::E;"), ("a/e.rs", "use crate::a::d::D;"));
    check(&[ROOT, a, b, c, d, e], &[("io::a", "d e")]);
}

#[test]
fn a_module_may_use_its_children_and_they_may_use_it() {
    let (a, d) = (("a.rs", "mod d; use d::D; fn f() { d::g() }"), ("a/d.rs", "use super::f;"));
    check(&[ROOT, a, ("b.rs", ""), ("c.rs", ""), d], &[]);
    let root = ("lib.rs", "mod a; pub struct Root(a::A);");
    check(&[root, ("a.rs", "use crate::Root;")], &[]);
}

#[test]
fn tests_comments_and_literals_tie_nothing() {
    let b = ("b.rs", "use crate::a::A;");
    for a in [
        "#[cfg(test)]\nmod tests { use crate::b::B; }",
        "#[cfg(test)]\nuse crate::b::B;",
        "#[cfg(test)]\nmod d;",
        "// use crate::b::B;\n/* crate::b */",
        "const B: &str = \"crate::b::B\";",
        "const B: &str = r#\"\"crate::b::B\"#;",
    ] {
        let (d, unknown) = (("a/d.rs", "use crate::b::B;"), ("a/unknown.rs", "use crate::b;"));
        check(&[ROOT, ("a.rs", a), b, ("c.rs", ""), d, unknown], &[]);
    }
}
