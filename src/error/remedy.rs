//! What to do about a failure: numbered steps with the commands to type, and other ways if there are any.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What to do. The first route keeps all events, if there is such a route; the others go on without some of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Remedy {
    routes: Vec<Route>,
}

/// Steps that lead out, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Route {
    /// What tells it from the other routes, such as "Without these events"; empty for the first.
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
        Step { text: text.into(), commands: Vec::new() }
    }

    /// The same with a command for the shell after those that it has.
    pub fn typing(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    /// The same with statements for psql, without the last semicolon.
    pub fn sql(self, statements: impl Into<String>) -> Self {
        self.typing(statements.into() + ";")
    }
}

impl Remedy {
    /// One route with these steps.
    pub fn steps(steps: impl IntoIterator<Item = Step>) -> Self {
        Remedy::default().or("", steps)
    }

    /// The same with another route after those that it has. `name` tells it from them.
    pub fn or(mut self, name: impl Into<String>, steps: impl IntoIterator<Item = Step>) -> Self {
        let steps: Vec<Step> = steps.into_iter().collect();
        if !steps.is_empty() {
            self.routes.push(Route { name: name.into(), steps });
        }
        self
    }

    /// The same with a last step for its first route.
    pub fn then(mut self, step: Step) -> Self {
        match self.routes.first_mut() {
            Some(route) => route.steps.push(step),
            None => return Remedy::steps([step]),
        }
        self
    }

    /// The same with the steps of another remedy's first route after those of its own, and that one's further routes.
    pub fn then_all(mut self, other: Remedy) -> Self {
        let mut routes = other.routes.into_iter();
        match (self.routes.first_mut(), routes.next()) {
            (Some(route), Some(next)) => route.steps.extend(next.steps),
            (None, Some(next)) => self.routes.push(next),
            (_, None) => {}
        }
        self.routes.extend(routes);
        self
    }

    /// The routes of both.
    pub fn and(mut self, other: Remedy) -> Self {
        self.routes.extend(other.routes);
        self
    }

    /// The same with every text changed by `change`.
    pub fn map(self, change: impl Fn(String) -> String) -> Self {
        let step = |Step { text, commands }| Step {
            text: change(text),
            commands: commands.into_iter().map(&change).collect(),
        };
        let route = |Route { name, steps }| Route { name, steps: steps.into_iter().map(step).collect() };
        Remedy { routes: self.routes.into_iter().map(route).collect() }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// As lines for a person, each command on a line of its own. Every line is indented.
    pub fn in_lines(&self) -> String {
        let mut text = String::new();
        for Route { name, steps } in &self.routes {
            let mut indent = "  ";
            if !name.is_empty() {
                text.push_str(&format!("  {name}:\n"));
                indent = "    ";
            }
            for (Step { text: step, commands }, number) in steps.iter().zip(1..) {
                let end = if commands.is_empty() { "" } else { ":" };
                text.push_str(&format!("{indent}{number}. {step}{end}\n"));
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
        for (Route { name, steps }, route) in self.routes.iter().zip(0..) {
            if route > 0 {
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

    fn two_routes() -> Remedy {
        Remedy::steps([
            Step::new("Create a slot").sql("SELECT 1").typing("outbox-router init"),
            Step::new("Start the router"),
        ])
        .or("Without the event", [Step::new("Skip it").typing("outbox-router slot advance --to 0/1")])
    }

    #[test]
    fn commands_have_lines_of_their_own() {
        insta::assert_snapshot!(two_routes().in_lines());
    }

    #[test]
    fn on_one_line_commands_are_between_backticks() {
        insta::assert_snapshot!(two_routes());
    }

    #[test]
    fn a_sentence_is_one_step() {
        let remedy = Remedy::from("Set it");
        assert_eq!(remedy.to_string(), "Set it");
        assert_eq!(remedy.in_lines(), "  1. Set it\n");
        assert!(Remedy::from("").is_empty());
        assert_eq!(remedy.then(Step::new("Start")).to_string(), "(1) Set it. (2) Start");
    }

    #[test]
    fn a_stored_remedy_is_read_back() {
        let json = serde_json::to_string(&two_routes()).unwrap();
        assert_eq!(serde_json::from_str::<Remedy>(&json).unwrap(), two_routes());
    }
}
