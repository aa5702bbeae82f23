//! The imports of a crate's files: `use` declarations and paths in the code, each resolved to the file that defines the item.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::tokens::{Token, is, tokens};

/// A path of modules, possibly with an item at its end, without `crate`.
pub(crate) type ItemPath = Vec<String>;

/// A file's import of an item of another file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    /// The importing file, `src/a/b.rs` or `crates/c/src/a/b.rs`.
    pub(crate) file: String,
    /// The path from the crate's root, as the importing file writes it.
    pub(crate) written: ItemPath,
    /// The path at which the item is defined, with `pub use` resolved.
    pub(crate) defined: ItemPath,
    /// The file that defines it.
    pub(crate) target: String,
}

impl Import {
    /// Whether the import names this module or item or something below it, as written or as defined. `path::*` names everything
    /// below `path`.
    pub(crate) fn names(&self, path: &[String]) -> bool {
        [&self.written, &self.defined].into_iter().any(|named| match named.split_last() {
            Some((last, above)) if last == "*" => named.starts_with(path) || path.starts_with(above),
            _ => named.starts_with(path),
        })
    }
}

#[derive(Debug, Default)]
struct Module {
    file: String,
    /// The names that `use` imports, each with its path as written.
    names: BTreeMap<String, ItemPath>,
    /// The paths of `use path::*`.
    globs: Vec<ItemPath>,
    /// The items defined here.
    items: BTreeSet<String>,
    /// All paths, those of `use` and those in the code.
    paths: Vec<ItemPath>,
}

/// A crate's modules, without its test modules.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    modules: BTreeMap<ItemPath, Module>,
}

impl Sources {
    /// Reads the crate in the folder `src` of the repository, starting at `lib.rs` and following `mod` declarations.
    pub(crate) fn read(root: &Path, src: &str) -> Self {
        let mut sources = Sources::default();
        let mut open = vec![(ItemPath::new(), format!("{src}/lib.rs"))];
        while let Some((module, file)) = open.pop() {
            let text = fs::read_to_string(root.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            for child in sources.add(&module, &file, &text) {
                let path = child.join("/");
                let candidates = [format!("{src}/{path}.rs"), format!("{src}/{path}/mod.rs")];
                let found = candidates.into_iter().find(|candidate| root.join(candidate).exists());
                open.push((
                    child,
                    found.unwrap_or_else(|| panic!("{file} declares {path}, which has no file")),
                ));
            }
        }
        sources
    }

    /// Adds one file. Returns the modules that it declares in files of their own.
    pub(crate) fn add(&mut self, module: &[String], file: &str, text: &str) -> Vec<ItemPath> {
        let tokens = tokens(text);
        let mut children = Vec::new();
        // the current module, and the number of open braces around each inline module
        let (mut here, mut inline, mut braces) = (module.to_vec(), Vec::new(), 0);
        let mut at = 0;
        self.open(&here, file);
        while let Some(token) = tokens.get(at) {
            at += 1;
            let rest = tokens.get(at..).unwrap_or_default();
            match token {
                Token::Symbol('#') if is(rest, &["[", "cfg", "(", "test", ")", "]"]) => {
                    at = after_item(&tokens, at + 6);
                }
                Token::Symbol('{') => braces += 1,
                Token::Symbol('}') => {
                    braces -= 1;
                    if inline.last() == Some(&braces) {
                        inline.pop();
                        here.pop();
                    }
                }
                Token::Word(word) if word == "mod" => {
                    let [Token::Word(name), Token::Symbol(end), ..] = rest else { continue };
                    let child = [here.as_slice(), std::slice::from_ref(name)].concat();
                    match end {
                        ';' => children.push(child),
                        _ => {
                            here = child;
                            inline.push(braces);
                            braces += 1;
                            self.open(&here, file);
                        }
                    }
                    at += 2;
                }
                Token::Word(word) if word == "use" => {
                    let end =
                        rest.iter().position(|token| *token == Token::Symbol(';')).unwrap_or(rest.len());
                    let mut tree = rest.get(..end).unwrap_or_default();
                    self.open(&here, file).add_use(&mut tree, &[]);
                    at += end;
                }
                Token::Word(word) => {
                    let module = self.open(&here, file);
                    if let (true, Some(Token::Word(name))) = (DEFINE.contains(&word.as_str()), rest.first()) {
                        module.items.insert(name.clone());
                    }
                    let mut path = vec![word.clone()];
                    while let [Token::PathSeparator, Token::Word(next), ..] =
                        tokens.get(at..).unwrap_or_default()
                    {
                        path.push(next.clone());
                        at += 2;
                    }
                    if path.len() > 1 {
                        module.paths.push(path);
                    }
                }
                Token::Symbol(_) | Token::PathSeparator => {}
            }
        }
        children
    }

    fn open(&mut self, module: &[String], file: &str) -> &mut Module {
        let module = self.modules.entry(module.to_vec()).or_default();
        file.clone_into(&mut module.file);
        module
    }

    /// All imports of items that another file defines, without repetitions.
    pub(crate) fn imports(&self) -> BTreeSet<Import> {
        let mut imports = BTreeSet::new();
        for (here, module) in &self.modules {
            for path in &module.paths {
                let Some(written) = self.rooted(here, path) else { continue };
                let (home, item) = self.resolve(&written, 0);
                let Some(target) = self.modules.get(&home) else { continue };
                // methods and variants are defined with their item
                let members = item.len().saturating_sub(1);
                if target.file != module.file {
                    imports.insert(Import {
                        file: module.file.clone(),
                        written: written.iter().take(written.len() - members).cloned().collect(),
                        defined: home.iter().chain(item.first()).cloned().collect(),
                        target: target.file.clone(),
                    });
                }
            }
        }
        imports
    }

    /// Turns a path as written in a module into one from the crate's root. `None` if it leads out of the crate or stays in the
    /// file.
    fn rooted(&self, here: &[String], path: &[String]) -> Option<ItemPath> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => ItemPath::new(),
            "self" => here.to_vec(),
            "super" => {
                let (_, parent) = here.split_last()?;
                return match rest.first() {
                    Some(next) if next == "super" => self.rooted(parent, rest),
                    _ => Some([parent, rest].concat()),
                };
            }
            name => match self.modules.get(here)?.names.get(name) {
                // `use pgoutput::pgoutput` would resolve to itself
                Some(known) if known.first() != Some(first) => self.rooted(here, known)?,
                _ => {
                    let child = [here, std::slice::from_ref(first)].concat();
                    self.modules.contains_key(&child).then_some(child)?
                }
            },
        };
        Some([start.as_slice(), rest].concat())
    }

    /// Resolves a path to the module that defines its item, and the rest of the path from there.
    fn resolve(&self, path: &[String], depth: usize) -> (ItemPath, ItemPath) {
        let mut length = 0;
        while length < path.len() && self.modules.contains_key(path.get(..=length).unwrap_or_default()) {
            length += 1;
        }
        let (home, item) = path.split_at(length);
        let unchanged = (home.to_vec(), item.to_vec());
        let (Some((name, rest)), Some(module)) = (item.split_first(), self.modules.get(home)) else {
            return unchanged;
        };
        // two modules with glob imports of each other would recurse for ever
        if depth > 20 || module.items.contains(name) {
            return unchanged;
        }
        let named = module.names.get(name).and_then(|known| self.rooted(home, known));
        let by_glob = || {
            let globs = module.globs.iter().filter_map(|glob| self.rooted(home, glob));
            globs
                .map(|glob| self.resolve(&glob, depth + 1).0)
                .find(|glob| self.modules.get(glob).is_some_and(|module| module.items.contains(name)))
                .map(|glob| [glob, vec![name.clone()]].concat())
        };
        match named.or_else(by_glob) {
            Some(known) => self.resolve(&[known.as_slice(), rest].concat(), depth + 1),
            None => unchanged,
        }
    }
}

/// The keywords before the name of an item.
const DEFINE: [&str; 8] = ["struct", "enum", "union", "trait", "type", "fn", "const", "static"];

impl Module {
    /// Adds the names of a `use` tree whose path begins with `before`.
    fn add_use(&mut self, tree: &mut &[Token], before: &[String]) {
        let mut path = before.to_vec();
        loop {
            let (next, rest) = match tree.split_first() {
                Some((next, rest)) => (next, rest),
                None => return self.add_name(&path, None),
            };
            match next {
                Token::Word(word) if word == "as" => {
                    let alias = rest.first();
                    *tree = rest.get(1..).unwrap_or_default();
                    if let Some(Token::Word(alias)) = alias {
                        self.add_name(&path, Some(alias));
                    }
                    return;
                }
                Token::Word(word) => path.push(word.clone()),
                Token::PathSeparator => {}
                Token::Symbol('*') => {
                    *tree = rest;
                    path.push("*".to_owned());
                    self.paths.push(path.clone());
                    path.pop();
                    return self.globs.push(path);
                }
                Token::Symbol('{') => {
                    *tree = rest;
                    while !matches!(tree.first(), None | Some(Token::Symbol('}'))) {
                        self.add_use(tree, &path);
                        if let Some((Token::Symbol(','), rest)) = tree.split_first() {
                            *tree = rest;
                        }
                    }
                    *tree = tree.get(1..).unwrap_or_default();
                    return;
                }
                Token::Symbol(_) => return self.add_name(&path, None),
            }
            *tree = rest;
        }
    }

    fn add_name(&mut self, path: &[String], alias: Option<&String>) {
        let path = match path.split_last() {
            Some((last, group)) if last == "self" && !group.is_empty() => group,
            _ => path,
        };
        if let Some(name) = alias.or(path.last()) {
            self.names.insert(name.clone(), path.to_vec());
            self.paths.push(path.to_vec());
        }
    }
}

/// Returns the end of the test-only item that begins at `at`. A field or a match arm is not skipped.
fn after_item(tokens: &[Token], at: usize) -> usize {
    const ITEMS: [&str; 6] = ["pub", "mod", "use", "impl", "async", "extern"];
    let begins = |word: &str| ITEMS.contains(&word) || DEFINE.contains(&word);
    let (mut end, mut open) = (at, 0);
    while let Some(token) = tokens.get(end) {
        match token {
            // a further attribute
            Token::Symbol('#') if open == 0 => {}
            Token::Word(word) if open == 0 && end == at && !begins(word) => return at,
            Token::Symbol('{' | '(' | '[') => open += 1,
            Token::Symbol('}') if open == 1 => return end + 1,
            Token::Symbol('}' | ')' | ']') => open -= 1,
            Token::Symbol(';') if open == 0 => return end + 1,
            _ => {}
        }
        end += 1;
    }
    end
}
