//! `${NAME}` in the strings of the file: the value of an environment variable.
//!
//! A name consists of capitals, digits and underscores, so it cannot be one of the values in templates, such as
//! `${aggregate_type}`. Values are inserted after the file has been parsed, so they cannot add keys to it; in a template, they are text.

use std::borrow::Cow;

use pg_logical::Environment;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::schema;
use super::source::{Inserted, Problems, Sources};
use super::template::{closing, is_variable_name};

/// Inserts variables into every string of the file. A variable that is not set is a problem.
pub(super) fn insert_variables(
    root: &mut DeTable<'_>,
    env: &Environment,
    sources: &mut Sources<'_>,
    problems: &mut Problems,
) {
    Inserter { env, sources, problems, path: Vec::new() }.table(root);
}

struct Inserter<'a, 's> {
    env: &'a Environment,
    sources: &'a mut Sources<'s>,
    problems: &'a mut Problems,
    /// The keys that lead to the current value.
    path: Vec<String>,
}

impl Inserter<'_, '_> {
    fn table(&mut self, table: &mut DeTable<'_>) -> Option<Inserted> {
        let mut inserted = None;
        let only_key = table.len() == 1;
        for (key, value) in table.iter_mut() {
            self.path.push(key.get_ref().to_string());
            inserted = both(inserted, self.value(value, only_key));
            self.path.pop();
        }
        inserted
    }

    /// `only_key`: the table of this value has no other key.
    fn value(&mut self, value: &mut Spanned<DeValue<'_>>, only_key: bool) -> Option<Inserted> {
        let span = value.span();
        if self.sources.is_variable(&span) {
            return None;
        }
        let inserted = match value.get_mut() {
            DeValue::String(text) => {
                let expanded = expand(text, schema::is_template(&self.path, only_key), self.env);
                if expanded.any {
                    self.sources.add_original(span.clone(), text.to_string());
                }
                for name in &expanded.unset {
                    self.problems.push(
                        self.sources.place(&span),
                        format!("`{}`: the variable {name} is not set", self.path.join(".")),
                        format!("Set it, or write $${{{name}}} for the text ${{{name}}}"),
                    );
                }
                let inserted = match (expanded.unset.as_slice(), expanded.any) {
                    ([], true) => Some(Inserted::All),
                    ([], false) => None,
                    _ => Some(Inserted::NotAll),
                };
                if let Cow::Owned(expanded) = expanded.text {
                    *text = Cow::Owned(expanded);
                }
                inserted
            }
            DeValue::Table(table) => self.table(table),
            DeValue::Array(items) => {
                items.iter_mut().fold(None, |sum, item| both(sum, self.value(item, false)))
            }
            _ => None,
        };
        if let Some(inserted) = inserted {
            self.sources.add_inserted(span, inserted);
        }
        inserted
    }
}

fn both(a: Option<Inserted>, b: Option<Inserted>) -> Option<Inserted> {
    if a == Some(Inserted::NotAll) { a } else { b.or(a) }
}

/// A text after variables were inserted.
struct Expanded<'t> {
    /// Borrowed if nothing changed.
    text: Cow<'t, str>,
    /// Whether any variable was inserted.
    any: bool,
    /// The names of variables that are not set.
    unset: Vec<String>,
}

/// `$$` before `{NAME}` stands for a dollar sign, as it does everywhere in a template, whose parser replaces it.
fn expand<'t>(text: &'t str, template: bool, env: &Environment) -> Expanded<'t> {
    let (mut any, mut unset) = (false, Vec::new());
    let done = rewrite(text, template, |done, dollars, name| {
        done.push_str(&"$".repeat(if template { dollars - dollars % 2 } else { dollars / 2 }));
        match (dollars % 2, env.variable(name)) {
            (0, _) => done.push_str(&format!("{{{name}}}")),
            (_, Some(value)) => {
                any = true;
                done.push_str(&if template { value.replace('$', "$$") } else { value.to_owned() });
            }
            (_, None) => unset.push(name.to_owned()),
        }
    });
    Expanded { text: if done == text { Cow::Borrowed(text) } else { Cow::Owned(done) }, any, unset }
}

/// The text that becomes this one when variables are inserted.
pub(crate) fn escape(text: &str) -> String {
    rewrite(text, false, |done, dollars, name| {
        done.push_str(&format!("{}{{{name}}}", "$".repeat(2 * dollars)));
    })
}

/// Whether the text consists of variables and nothing else.
pub(super) fn is_only_variables(text: &str) -> bool {
    let is_variable = |part: &str| part.strip_prefix("${").is_some_and(is_variable_name);
    text.ends_with('}') && text.split_terminator('}').all(is_variable)
}

/// Passes each name in `${NAME}` to `insert`, with the number of dollar signs before it, and copies the rest. In a template, the
/// inside of another `${...}` is part of the rest.
fn rewrite(text: &str, template: bool, mut insert: impl FnMut(&mut String, usize, &str)) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let literal = before.trim_end_matches('$');
        let dollars = before.len() - literal.len();
        let name = after.split_once('}').filter(|(name, _)| dollars > 0 && is_variable_name(name));
        if let Some((name, after)) = name {
            done.push_str(literal);
            insert(&mut done, dollars, name);
            rest = after;
            continue;
        }
        let is_value = template && dollars % 2 == 1;
        let end = if is_value { closing(after).unwrap_or(after.len()) } else { 0 };
        let (inside, after) = after.split_at_checked(end).unwrap_or((after, ""));
        done.push_str(before);
        done.push('{');
        done.push_str(inside);
        rest = after;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn env() -> Environment {
        Environment::empty()
            .with_variable("NAME", "a$b{c}")
            .with_variable("E", "")
            .with_variable("lower", "x")
    }

    #[test]
    fn names_in_capitals_are_replaced_and_two_dollar_signs_are_one() {
        for (text, plain, template) in [
            ("", "", ""),
            ("${NAME}", "a$b{c}", "a$$b{c}"),
            ("x${E}y${NAME}", "xya$b{c}", "xya$$b{c}"),
            ("$${NAME}", "${NAME}", "$${NAME}"),
            ("$$${NAME}", "$a$b{c}", "$$a$$b{c}"),
            ("$$$${NAME}", "$${NAME}", "$$$${NAME}"),
            ("${lower}${Name}${1}${}", "${lower}${Name}${1}${}", "${lower}${Name}${1}${}"),
            ("{NAME} $NAME $$ {${NAME}", "{NAME} $NAME $$ {a$b{c}", "{NAME} $NAME $$ {a$$b{c}"),
            ("${NAME", "${NAME", "${NAME"),
            ("${E}${a | default('${NAME}}')}${E}", "${a | default('a$b{c}}')}", "${a | default('${NAME}}')}"),
            ("ü${source.lsn}$$", "ü${source.lsn}$$", "ü${source.lsn}$$"),
        ] {
            assert_eq!(expand(text, false, &env()).text, plain, "{text}");
            assert_eq!(expand(text, true, &env()).text, template, "{text}");
        }
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        assert_eq!(expand("${A}${E}${B_2}$${C}", false, &env()).unset, ["A", "B_2"]);
    }

    #[test]
    fn a_text_may_consist_of_variables() {
        for (text, only) in [
            ("${A}", true),
            ("${A}${B_2}", true),
            ("", false),
            ("${A} ", false),
            ("x${A}", false),
            ("${A}${B", false),
            ("$${A}", false),
            ("${a}", false),
        ] {
            assert_eq!(is_only_variables(text), only, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_text_has_no_variables(text in "[$A{}a]{0,16}") {
            let escaped = escape(&text);
            let expanded = expand(&escaped, false, &Environment::empty());
            prop_assert_eq!((&*expanded.text, expanded.unset.len()), (text.as_str(), 0));
        }

        #[test]
        fn a_value_is_literal_text_in_a_template(value in "\\PC{1,12}", before in "[a-z$]{0,3}") {
            use crate::config::template::Template;
            let before = before.replace('$', "$$");
            let env = Environment::empty().with_variable("V", &value);
            let text = format!("{before}${{V}}");
            let template = Template::parse(&expand(&text, true, &env).text).unwrap();
            let expected = before.replace("$$", "$") + &value;
            prop_assert_eq!(template.fixed(), Some(expected.as_str()));
        }

        #[test]
        fn a_text_without_a_name_in_capitals_does_not_change(text in "[$a-z{}. ]{0,16}") {
            prop_assert_eq!(expand(&text, false, &env()).text, text.as_str());
        }
    }
}
