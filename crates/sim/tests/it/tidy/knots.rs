//! The rule about module graphs: sibling modules do not depend on each other in a circle.
//!
//! The modules below one parent are the nodes of a graph, each with everything below it. A module depends on a
//! sibling if its code names something in it ([`references`]), directly or through a re-export. Modules that reach
//! each other are a knot. References between a module and one that contains it do not count: a parent may use its
//! children, and a child the items of its parent.
//!
//! Guarantees: a knot fails with the references that tie it. Leaves to others: where the code should go instead;
//! dependencies between crates, which cargo keeps free of circles.

mod references;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::references::{Module, Reference, references};
use super::assert_none;
use super::scan::Scan;
use super::tree::{TextFile, rust_files};

/// A chain of re-exports longer than this is one that leads back to itself.
const REEXPORTS_MAX: usize = 16;

#[test]
fn no_modules_depend_on_each_other_in_a_circle() {
    let files = rust_files();
    let knots: Vec<_> = ModuleTree::all(&files).iter().flat_map(ModuleTree::knots).collect();
    let described: Vec<_> = knots.iter().map(Knot::describe).collect();
    assert_none(
        &described,
        "move what both sides need into a module that both may use, or merge them:",
    );
}

/// The modules of a library or program, without those that exist only in tests.
struct ModuleTree<'a> {
    /// Folder of the crate, below `crates`.
    name: &'a str,
    modules: BTreeMap<Module, SourceFile<'a>>,
}

struct SourceFile<'a> {
    path: &'a str,
    references: Vec<Reference>,
}

/// Modules below `parent` that reach each other.
struct Knot {
    parent: String,
    modules: BTreeSet<String>,
    /// One line per reference between them.
    references: Vec<String>,
}

impl Knot {
    fn describe(&self) -> String {
        let modules: Vec<_> = self.modules.iter().map(String::as_str).collect();
        let references = self.references.join("\n    ");
        format!("{}: {}\n    {references}", self.parent, modules.join(" "))
    }
}

impl<'a> ModuleTree<'a> {
    /// The trees of all libraries and programs among `files`.
    fn all(files: &'a [TextFile]) -> Vec<Self> {
        let by_path: BTreeMap<_, _> = files.iter().map(|file| (file.path.as_str(), file)).collect();
        let tree = |file: &'a TextFile| {
            let (folder, root) = file.path.rsplit_once("/src/")?;
            if !matches!(root, "lib.rs" | "main.rs") {
                return None;
            }
            let name = folder.rsplit('/').next().unwrap_or(folder);
            let mut tree = Self { name, modules: BTreeMap::new() };
            tree.add(&by_path, &Module::new(), file);
            Some(tree)
        };
        files.iter().filter_map(tree).collect()
    }

    /// Adds `module`, which is in `file`, and the modules that it declares outside of tests.
    fn add(&mut self, files: &BTreeMap<&str, &'a TextFile>, module: &Module, file: &'a TextFile) {
        let code = Scan::new(&file.text).code_without_tests();
        let (own, is_root) = (file.path.trim_end_matches(".rs"), module.is_empty());
        let folder =
            if is_root { own.rsplit_once('/').map_or("", |(folder, _)| folder) } else { own };
        let found = references(&code);
        for name in found.declared {
            if let Some(&child) = files.get(format!("{folder}/{name}.rs").as_str()) {
                self.add(files, &[module.as_slice(), &[name]].concat(), child);
            }
        }
        let source = SourceFile { path: &file.path, references: found.references };
        self.modules.insert(module.clone(), source);
    }

    fn knots(&self) -> Vec<Knot> {
        let mut graphs: BTreeMap<Module, Graph> = BTreeMap::new();
        let exports = self.exports();
        for (from, source) in &self.modules {
            for reference in &source.references {
                let Some((to, _)) = self.resolve(from, &reference.path, &exports) else { continue };
                let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) else { continue };
                let (path, line) = (source.path, reference.line);
                let text = format!("{user} → {used}: {path}:{line} {}", reference.path.join("::"));
                graphs.entry(from[..shared].to_vec()).or_default().add(user, used, text);
            }
        }
        let knots = |(parent, graph): (Module, Graph)| {
            let parent = [vec![self.name.to_owned()], parent].concat().join("::");
            graph.knots(&parent)
        };
        graphs.into_iter().flat_map(knots).collect()
    }

    /// What each module re-exports: the module that has it, and the path there.
    fn exports(&self) -> Exports {
        let none = Exports::new();
        let mut exports = Exports::new();
        for (module, source) in &self.modules {
            for reference in &source.references {
                let Some(name) = &reference.exported_as else { continue };
                if let Some(target) = self.resolve(module, &reference.path, &none) {
                    exports.insert((module.clone(), name.clone()), target);
                }
            }
        }
        exports
    }

    /// The module that `path` leads to from `module`, and the rest of the path inside of it; `None` if it leads out of
    /// the crate.
    fn resolve(&self, module: &Module, path: &[String], exports: &Exports) -> Option<Target> {
        let mut at = module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Module::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {}
            child if self.has_child(module, child) => {}
            _ => return None,
        }
        while let [first, further @ ..] = rest
            && first == "super"
        {
            at.pop();
            rest = further;
        }
        let mut rest = rest.to_vec();
        for _ in 0..REEXPORTS_MAX {
            while rest.first().is_some_and(|name| self.has_child(&at, name)) {
                at.push(rest.remove(0));
            }
            let Some(name) = rest.first() else { break };
            let Some((to, inside)) = exports.get(&(at.clone(), name.clone())) else { break };
            rest = [inside, &rest[1..]].concat();
            at.clone_from(to);
        }
        Some((at, rest))
    }

    fn has_child(&self, module: &Module, name: &str) -> bool {
        self.modules.contains_key(&[module.as_slice(), &[name.to_owned()]].concat())
    }
}

/// A module, and a path inside of it.
type Target = (Module, Vec<String>);

/// Targets by the module that re-exports them and the name they have there.
type Exports = BTreeMap<(Module, String), Target>;

/// The references among the modules below one parent, by user and used.
#[derive(Default)]
struct Graph(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Graph {
    fn add(&mut self, user: &str, used: &str, reference: String) {
        let edges = self.0.entry(user.to_owned()).or_default();
        edges.entry(used.to_owned()).or_default().push(reference);
    }

    fn knots(&self, parent: &str) -> Vec<Knot> {
        let reach: BTreeMap<_, _> = self.0.keys().map(|one| (one, self.reachable(one))).collect();
        let reaches = |one, other| reach.get(one).is_some_and(|found| found.contains(other));
        let tied = |one| reach[one].iter().copied().filter(|other| reaches(*other, one)).collect();
        let groups: BTreeSet<BTreeSet<&String>> = reach.keys().copied().map(tied).collect();
        let knot = |modules: BTreeSet<&String>| {
            let users = self.0.iter().filter(|(user, _)| modules.contains(user));
            let edges = users.flat_map(|(_, edges)| edges);
            let inside = edges.filter(|(used, _)| modules.contains(used));
            Knot {
                parent: parent.to_owned(),
                references: inside.flat_map(|(_, references)| references.clone()).collect(),
                modules: modules.into_iter().cloned().collect(),
            }
        };
        groups.into_iter().filter(|modules| modules.len() > 1).map(knot).collect()
    }

    /// The modules that `from` depends on, directly or not.
    fn reachable<'a>(&'a self, from: &'a String) -> BTreeSet<&'a String> {
        let mut found = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            let used = self.0.get(module).into_iter().flat_map(BTreeMap::keys);
            next.extend(used.filter(|used| found.insert(*used)));
        }
        found
    }
}
