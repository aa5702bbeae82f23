//! What to do about a failure: numbered steps with the commands to type, and other ways if there are any.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::with_config_file;

/// What to do. If one way keeps all events and another goes on without some, the first comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Remedy {
    ways: Vec<Way>,
}

/// Steps that lead out, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Way {
    /// What tells it from the other ways, such as "Without these events"; empty for the first.
    name: String,
    steps: Vec<Step>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What to do, as a sentence without a full stop.
    text: String,
    /// What to type, complete and as it is.
    commands: Vec<String>,
}

impl Step {
    /// A step with nothing to type.
    pub fn new(text: impl Into<String>) -> Self {
        Step { text: with_config_file(text), commands: Vec::new() }
    }

    /// The same with a command for the shell after those that it has.
    pub fn typing(mut self, command: impl Into<String>) -> Self {
        self.commands.push(with_config_file(command));
        self
    }

    /// The same with statements for psql, without the last semicolon.
    pub fn sql(self, statements: impl Into<String>) -> Self {
        self.typing(statements.into() + ";")
    }
}

impl Remedy {
    /// One way with these steps.
    pub fn steps(steps: impl IntoIterator<Item = Step>) -> Self {
        Remedy::default().or("", steps)
    }

    /// The same with another way after those that it has. `name` tells it from them.
    pub fn or(mut self, name: impl Into<String>, steps: impl IntoIterator<Item = Step>) -> Self {
        let steps: Vec<Step> = steps.into_iter().collect();
        if !steps.is_empty() {
            self.ways.push(Way { name: with_config_file(name), steps });
        }
        self
    }

    /// The same with another way before its last one, or after its only one.
    pub fn or_before_last(mut self, name: impl Into<String>, steps: impl IntoIterator<Item = Step>) -> Self {
        let last = if self.ways.len() > 1 { self.ways.pop() } else { None };
        let mut all = self.or(name, steps);
        all.ways.extend(last);
        all
    }

    /// The same with a last step for its first way.
    pub fn then(mut self, step: Step) -> Self {
        match self.ways.first_mut() {
            Some(way) => way.steps.push(step),
            None => return Remedy::steps([step]),
        }
        self
    }

    /// The same with the steps of another remedy's first way after those of its own, and that one's further ways.
    pub fn then_all(mut self, other: Remedy) -> Self {
        let mut ways = other.ways.into_iter();
        match (self.ways.first_mut(), ways.next()) {
            (Some(way), Some(next)) => way.steps.extend(next.steps),
            (None, Some(next)) => self.ways.push(next),
            (_, None) => {}
        }
        self.ways.extend(ways);
        self
    }

    /// The same with the commands of another remedy's first way before those of its own first step, unless it has them already.
    pub fn preceded_by(mut self, other: Remedy) -> Self {
        let earlier = other.ways.into_iter().take(1).flat_map(|way| way.steps).flat_map(|step| step.commands);
        if let Some(first) = self.ways.first_mut().and_then(|way| way.steps.first_mut()) {
            let earlier: Vec<String> = earlier.filter(|command| !first.commands.contains(command)).collect();
            first.commands.splice(0..0, earlier);
        }
        self
    }

    /// The ways of both. `name` tells the first way of the other from them, if it has no name.
    pub fn and(mut self, name: &str, mut other: Remedy) -> Self {
        if let Some(first) = other.ways.first_mut().filter(|first| first.name.is_empty()) {
            first.name = name.to_owned();
        }
        self.ways.extend(other.ways);
        self
    }

    /// The same with every text changed by `change`.
    pub fn map(self, change: impl Fn(String) -> String) -> Self {
        let step = |Step { text, commands }| Step {
            text: change(text),
            commands: commands.into_iter().map(&change).collect(),
        };
        let way =
            |Way { name, steps }| Way { name: change(name), steps: steps.into_iter().map(step).collect() };
        Remedy { ways: self.ways.into_iter().map(way).collect() }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// As lines for a person, each command on a line of its own. Every line is indented. A single step has no number.
    pub fn in_lines(&self) -> String {
        let mut text = String::new();
        for Way { name, steps } in &self.ways {
            let mut indent = "  ";
            if !name.is_empty() {
                text.push_str(&format!("  {name}:\n"));
                indent = "    ";
            }
            let numbered = steps.len() > 1;
            for (Step { text: step, commands }, number) in steps.iter().zip(1..) {
                let end = if commands.is_empty() { "" } else { ":" };
                let number = if numbered { format!("{number}. ") } else { String::new() };
                text.push_str(&format!("{indent}{number}{step}{end}\n"));
                for command in commands {
                    text.push_str(&format!("{indent}     {command}\n"));
                }
            }
        }
        text
    }
}

/// On one line, with the commands between backticks.
impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (Way { name, steps }, way) in self.ways.iter().zip(0..) {
            if way > 0 {
                f.write_str(". ")?;
            }
            if !name.is_empty() {
                write!(f, "{name}: ")?;
            }
            let numbered = steps.len() > 1;
            for (Step { text, commands }, number) in steps.iter().zip(1..) {
                if number > 1 {
                    f.write_str(". ")?;
                }
                if numbered {
                    write!(f, "({number}) ")?;
                }
                f.write_str(text)?;
                for (command, typed) in commands.iter().zip(0..) {
                    f.write_str(if typed == 0 { ": " } else { ", then " })?;
                    write!(f, "`{command}`")?;
                }
            }
        }
        Ok(())
    }
}

impl From<&str> for Remedy {
    fn from(sentence: &str) -> Self {
        Remedy::from(sentence.to_owned())
    }
}

impl From<&String> for Remedy {
    fn from(sentence: &String) -> Self {
        Remedy::from(sentence.clone())
    }
}

impl From<String> for Remedy {
    fn from(sentence: String) -> Self {
        if sentence.is_empty() { Remedy::default() } else { Remedy::steps([Step::new(sentence)]) }
    }
}

impl From<std::borrow::Cow<'_, str>> for Remedy {
    fn from(sentence: std::borrow::Cow<'_, str>) -> Self {
        Remedy::from(sentence.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_ways() -> Remedy {
        Remedy::steps([
            Step::new("Create a slot").sql("SELECT 1").typing("outbox-router init"),
            Step::new("Start the router"),
        ])
        .or("Without the event", [Step::new("Skip it").typing("outbox-router slot advance --to 0/1")])
    }

    #[test]
    fn commands_have_lines_of_their_own() {
        insta::assert_snapshot!(two_ways().in_lines());
    }

    #[test]
    fn on_one_line_commands_are_between_backticks() {
        insta::assert_snapshot!(two_ways());
    }

    #[test]
    fn a_sentence_is_one_step() {
        let remedy = Remedy::from("Set it");
        assert_eq!(remedy.to_string(), "Set it");
        assert_eq!(remedy.in_lines(), "  Set it\n");
        assert!(Remedy::from("").is_empty());
        assert_eq!(remedy.then(Step::new("Start")).to_string(), "(1) Set it. (2) Start");
    }

    #[test]
    fn a_stored_remedy_is_read_back() {
        let json = serde_json::to_string(&two_ways()).unwrap();
        assert_eq!(serde_json::from_str::<Remedy>(&json).unwrap(), two_ways());
    }
}
