//! The paths by which the code of a module names other modules of its crate, and the modules that it declares.
//!
//! A reference is a path of a `use`, or one elsewhere that may lead into the crate: it begins with `crate`, `super`,
//! `self` or a declared module.
//!
//! Guarantees: every part of a nested `use` is a path of its own, with the name under which `pub use` exports it.
//! Leaves to others: where a path leads. Not seen: paths that a macro puts together, names behind `pub use …::*`, and
//! modules with their body in the same file, which count as part of it.

/// The names from the root of the crate to a module; the root has none.
pub(super) type Module = Vec<String>;

/// A path in the code of a module.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) path: Vec<String>,
    /// Counted from one.
    pub(super) line: usize,
    /// Its name in this module, if others may use it from there.
    pub(super) exported_as: Option<String>,
}

#[derive(Default)]
pub(super) struct References {
    pub(super) references: Vec<Reference>,
    /// Modules in files of their own.
    pub(super) declared: Vec<String>,
}

/// Reads `code`, which has neither comments nor literals nor tests.
pub(super) fn references(code: &str) -> References {
    let tokens = tokens(code);
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut found = References::default();
    for at in 0..tokens.len() {
        if text(at) == "mod" && text(at + 2) == ";" {
            found.declared.push(text(at + 1).to_owned());
        }
    }
    let mut at = 0;
    while at < tokens.len() {
        let before = if at == 0 { "" } else { text(at - 1) };
        match text(at) {
            // Not `use<'a>`, which belongs to a type.
            "use" if text(at + 1) != "<" => {
                let is_export = before == "pub" || before == ")";
                let mut tree = UseTree { tokens: &tokens, is_export, found: &mut found.references };
                at = tree.read(at + 1, &[]);
            }
            first if before != "::" && text(at + 1) == "::" && may_lead_inside(first, &found) => {
                let (start, mut path) = (at, vec![first.to_owned()]);
                while text(at + 1) == "::" && is_name(text(at + 2)) {
                    path.push(text(at + 2).to_owned());
                    at += 2;
                }
                let line = tokens[start].line;
                found.references.push(Reference { path, line, exported_as: None });
                at += 1;
            }
            _ => at += 1,
        }
    }
    found
}

fn may_lead_inside(first: &str, found: &References) -> bool {
    matches!(first, "crate" | "self" | "super") || found.declared.iter().any(|name| name == first)
}

/// A name, `::`, or any other single character.
struct Token<'a> {
    text: &'a str,
    line: usize,
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let name = rest.find(|letter: char| !is_letter(letter)).unwrap_or(rest.len());
            let length = match name {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                _ => name,
            };
            tokens.push(Token { text: &rest[..length], line: number + 1 });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

fn is_name(text: &str) -> bool {
    text.starts_with(is_letter)
}

fn is_letter(letter: char) -> bool {
    letter == '_' || letter.is_alphanumeric()
}

/// The paths after a `use`.
struct UseTree<'a> {
    tokens: &'a [Token<'a>],
    is_export: bool,
    found: &'a mut Vec<Reference>,
}

impl UseTree<'_> {
    /// Reads the paths from `at` on, which continue `prefix`, up to a comma or the end; returns the position there.
    fn read(&mut self, mut at: usize, prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        let mut alias = None;
        while let Some(Token { text, line }) = self.tokens.get(at) {
            match *text {
                // The name of another crate follows: no module has an empty name.
                "::" if path.is_empty() => path.push(String::new()),
                "::" => {}
                "{" => return self.read_group(at + 1, &path),
                "as" => {
                    alias = self.tokens.get(at + 1).map(|token| token.text.to_owned());
                    at += 1;
                }
                "self" if !path.is_empty() => {}
                "," | ";" | "}" => {
                    let name = alias.or_else(|| path.last().cloned());
                    let exported_as = name.filter(|_| self.is_export);
                    self.found.push(Reference { path, line: *line, exported_as });
                    return at;
                }
                name => path.push(name.to_owned()),
            }
            at += 1;
        }
        at
    }

    fn read_group(&mut self, mut at: usize, prefix: &[String]) -> usize {
        while let Some(token) = self.tokens.get(at) {
            match token.text {
                "}" => return at + 1,
                "," => at += 1,
                _ => at = self.read(at, prefix),
            }
        }
        at
    }
}
