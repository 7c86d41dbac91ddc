//! Layers of all crates: a folder imports only folders before it in a list, and files import without circles.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::files::read_all;

const INDEX: [&str; 5] = ["base", "storage", "suffixes", "lookup", "indexing"];
const CORE: [&str; 9] = [
    "portable_math",
    "draft",
    "verify",
    "weights",
    "memory",
    "budget",
    "papers",
    "fused",
    "engine",
];
const FORWARD: [&str; 7] = ["error", "parallel", "simd", "gguf", "bandwidth", "kernel", "model"];
/// The bindings have files alone, without layers.
const FILES: [&str; 0] = [];

/// The source text of each file, by its module path below `crate::`.
type SourceTexts = BTreeMap<String, String>;

fn read(root: &Path) -> SourceTexts {
    let is_code = |(path, _): &(PathBuf, Vec<u8>)| path.extension() == Some("rs".as_ref());
    let files = read_all(root).into_iter();
    let sources = files.filter(is_code).map(|(path, text)| {
        let module = path.with_extension("").to_str().unwrap().replace('/', "::");
        (module, String::from_utf8(text).unwrap())
    });
    let is_file = |module: &str| module != "lib" && !module.ends_with("mod");
    let is_tested = |module: &str| is_file(module) && !module.starts_with("tests::");
    sources.filter(|(module, _)| is_tested(module)).collect()
}

/// The files that a file names by their paths, outside of comments and of its unit tests.
///
/// A path of `crate::` that leads to no file stands for itself. In paths of `super::` and `self::`, which
/// start at the folder and at the file, only names of files count: they may lead to items or inner modules.
fn imports(module: &str, text: &str, sources: &SourceTexts) -> Vec<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: Vec<_> = text.lines().filter(|line| !line.trim().starts_with("//")).collect();
    let code = code.join("\n");
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let file = |path: &str| {
        let whole = format!("{path}::");
        let in_file = |module: &&String| whole.starts_with(&format!("{module}::"));
        sources.keys().find(in_file).cloned()
    };
    let paths = |start: &'static str| code.split(start).skip(1);
    let first = |path: &str| path.split(|c| !is_part(c)).next().unwrap_or_default().to_owned();
    let whole = paths("crate::").map(first).map(|path| file(&path).unwrap_or(path));
    let mut found: Vec<_> = whole.collect();
    let folder = module.rsplit_once("::").map_or("", |(folder, _)| folder);
    for (start, root) in [("super::", folder), ("self::", module)] {
        for path in paths(start) {
            let in_braces = path.strip_prefix('{').and_then(|path| path.split(['}', ';']).next());
            let names = in_braces.map_or_else(
                || vec![first(path)],
                |names| names.split(',').map(|name| first(name.trim())).collect(),
            );
            found.extend(names.iter().filter_map(|name| file(&format!("{root}::{name}"))));
        }
    }
    found.retain(|name| name != module);
    found
}

fn layer(folders: &[&str], module: &str) -> Option<usize> {
    let folder = module.split("::").next();
    folders.iter().position(|name| folder == Some(name))
}

/// Returns a description of each wrong import.
fn faults(folders: &[&str], sources: &SourceTexts) -> Vec<String> {
    let edges = sources.iter().flat_map(|(module, text)| {
        let names = imports(module, text, sources).into_iter();
        names.map(move |name| (module.clone(), name))
    });
    let mut edges: Vec<_> = edges.collect();
    let is_wrong = |(from, to): &(String, String)| {
        layer(folders, to) > layer(folders, from) || !sources.contains_key(to)
    };
    let wrong = edges.iter().filter(|edge| is_wrong(edge));
    let wrong = wrong.map(|(from, to)| format!("{from} may not import {to}"));
    let mut faults: Vec<_> = wrong.collect();
    // What remains when files that import nothing, or that nothing imports, are taken away.
    let mut num_before = usize::MAX;
    while edges.len() < num_before {
        num_before = edges.len();
        let (from, to): (Vec<_>, Vec<_>) = edges.iter().cloned().unzip();
        edges.retain(|edge| from.contains(&edge.1) && to.contains(&edge.0));
    }
    let circles = edges.iter().map(|(from, to)| format!("{from} -> {to} is part of a circle"));
    faults.extend(circles);
    faults
}

#[test]
fn folders_import_only_lower_layers_and_files_without_circles() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = [
        ("../index", &INDEX[..], 20),
        (".", &CORE, 20),
        ("../forward", &FORWARD, 17),
        ("../c", &FILES, 3),
        ("../py", &FILES, 20),
    ];
    for (root, folders, num_files) in crates {
        let sources = read(&core.join(root));
        let has_layer = |module: &String| folders.is_empty() || layer(folders, module).is_some();
        assert!(sources.len() > num_files && sources.keys().all(has_layer));
        let faults = faults(folders, &sources);
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

#[test]
fn imports_of_higher_layers_circles_and_whole_folders_are_found() {
    let texts = [
        ("draft::a", "/// [`crate::x`]\nuse crate::memory::b::B;"),
        ("memory::b", "use super::{c::C};\ncrate::draft::A;"),
        ("memory::c", "fn f() { super::b::g(); } use super::{$vector};"),
        ("fused::d", "use crate::memory::c;\n#[cfg(test)]\ncrate::x"),
    ];
    let sources = texts.map(|(module, text)| (module.to_owned(), text.to_owned()));
    let expected = [
        "draft::a may not import memory::b",
        "memory::b may not import draft::A",
        "memory::b -> memory::c is part of a circle",
        "memory::c -> memory::b is part of a circle",
    ];
    assert_eq!(faults(&CORE, &SourceTexts::from(sources)), expected);
}
