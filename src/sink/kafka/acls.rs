//! The rights that the router's principal needs in Kafka, as commands for kafka-acls.sh, and what to do about a missing one.

use pg_logical::Secret;
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::config::template::Template;
use crate::config::{Config, DeliveryMode};
use crate::error::{shell_word, with_config_file};

/// What a right is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Resource {
    /// The positions topic.
    Positions(String),
    /// Topics of events.
    Topics(Template),
    /// The transactional ids of the router with this name.
    TransactionalIds(String),
}

/// The rights on one resource, as a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    resource: Resource,
    /// What is granted and why, as a sentence.
    pub comment: String,
    /// The command, on several lines.
    pub command: String,
}

/// Everything that the router's principal needs. By default nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// The router's name.
    name: String,
    all: Vec<Grant>,
}

/// The beginning of every command.
fn tool(config: &Config) -> String {
    format!(
        "kafka-acls.sh --bootstrap-server {} --command-config admin.properties --add \\\n  \
         --allow-principal User:outbox-router",
        shell_word(config.kafka.properties.get("bootstrap.servers").map_or("", Secret::reveal))
    )
}

/// The right of an idempotent producer, which brokers before 2.8 require.
pub fn idempotent_write(config: &Config) -> String {
    format!("{} \\\n  --operation IdempotentWrite --cluster", tool(config))
}

impl Grants {
    /// What this configuration needs.
    pub fn of(config: &Config) -> Self {
        let tool = tool(config);
        let (create, about_create) = if config.topics.create {
            (" --operation Create", "Create: `[topics] create` is true.")
        } else {
            ("", "No Create: `[topics] create` is false.")
        };
        let operations =
            format!("--operation Describe --operation DescribeConfigs --operation Write{create}");
        let mut all: Vec<Grant> = Vec::new();
        if let Some(topic) = &config.delivery.positions_topic {
            all.push(Grant {
                resource: Resource::Positions(topic.clone()),
                comment: format!("The topic {topic}, where the router stores its checkpoints. {about_create}"),
                // at its start the router reads its last checkpoint
                command: format!(
                    "{tool} \\\n  {operations} --operation Read \\\n  --topic {topic} --resource-pattern-type literal"
                ),
            });
        }
        if config.delivery.mode == DeliveryMode::ExactlyOnce {
            all.extend(config.every_shard().into_iter().map(|shard| Grant {
                comment: format!(
                    "The transactions of the router {0}: its transactional ids begin with its name and a full stop.",
                    shard.name
                ),
                command: format!(
                    "{tool} \\\n  --operation Describe --operation Write \\\n  --transactional-id {} --resource-pattern-type prefixed",
                    shell_word(&format!("{}.", shard.name))
                ),
                resource: Resource::TransactionalIds(shard.name),
            }));
        }
        for template in config.route.topics() {
            let (resource, which) = in_words(template);
            let command = format!("{tool} \\\n  {operations} \\\n  {resource}");
            if !all.iter().any(|known| known.command == command) {
                let comment = format!("{which}. {about_create}");
                all.push(Grant { resource: Resource::Topics(template.clone()), comment, command });
            }
        }
        Grants { name: config.name.clone(), all }
    }

    /// Each resource.
    pub fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.all.iter()
    }

    /// The right that is missing if the brokers deny a record of `topic` with this code.
    pub(super) fn missing_for(&self, code: Code, topic: &str) -> MissingRight {
        match code {
            Code::ClusterAuthorizationFailed => self.missing_on_cluster(topic),
            Code::TransactionalIdAuthorizationFailed => self.missing_on_transactions(&self.name),
            _ => self.missing_on_topic("WRITE", topic),
        }
    }

    /// The right to do `operation` with a topic is missing.
    pub(super) fn missing_on_topic(&self, operation: &'static str, topic: &str) -> MissingRight {
        let covers = |grant: &&Grant| match &grant.resource {
            Resource::Positions(positions) => positions == topic,
            Resource::Topics(template) => template.may_produce(topic),
            Resource::TransactionalIds(_) => false,
        };
        MissingRight::new(format!("lacks {operation} on the topic {topic}"), self.iter().find(covers))
    }

    /// The right to use the transactional ids of the router `name` is missing.
    pub(super) fn missing_on_transactions(&self, name: &str) -> MissingRight {
        let covers = |grant: &&Grant| matches!(&grant.resource, Resource::TransactionalIds(of) if of == name);
        let ids = format!("lacks WRITE or DESCRIBE on the transactional ids that begin with {name}.");
        MissingRight::new(ids, self.iter().find(covers))
    }

    /// The right to create an idempotent producer is missing, which brokers from 2.8 on give to whoever may write to any topic. The
    /// producer writes to `topic` next.
    pub(super) fn missing_on_cluster(&self, topic: &str) -> MissingRight {
        let of_topic = self.missing_on_topic("WRITE", topic);
        MissingRight {
            what: "has neither WRITE on any topic nor IDEMPOTENT_WRITE on the cluster".to_owned(),
            ..of_topic
        }
    }
}

/// A right that the router's principal lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingRight {
    /// The operation and the resource, with the verb of the clause.
    what: String,
    /// What to do, as a sentence without a full stop.
    pub(super) remedy: String,
}

impl MissingRight {
    fn new(what: String, grant: Option<&Grant>) -> Self {
        let command = match grant {
            Some(grant) => format!(
                "As an administrator, run this with the router's principal in place of User:outbox-router: `{}` \
                 (`outbox-router init --print-acls` prints all that it needs)",
                grant.command.replace(" \\\n ", "")
            ),
            None => "Grant the router's principal this right: `outbox-router init --print-acls` prints all that it needs".to_owned(),
        };
        MissingRight { what, remedy: with_config_file(command) }
    }

    /// What is missing, as a clause.
    pub(super) fn what(&self) -> String {
        format!("the router's principal {}", self.what)
    }

    /// The same with what to do.
    pub(super) fn reason(&self) -> String {
        format!("{}. {}", self.what(), self.remedy)
    }
}

fn in_words(template: &Template) -> (String, String) {
    if let Some(topic) = template.fixed() {
        return (format!("--topic {topic} --resource-pattern-type literal"), format!("The topic {topic}"));
    }
    match template.prefix() {
        "" => (
            "--topic '*' --resource-pattern-type literal".to_owned(),
            format!(
                "All topics, because {template} begins with a column: a fixed prefix would narrow this down"
            ),
        ),
        prefix => (
            format!("--topic {prefix} --resource-pattern-type prefixed"),
            format!("All topics of {template}, by their prefix"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::minimal_with;

    #[test]
    fn the_code_says_which_right_is_missing() {
        let grants = Grants::of(&minimal_with("name = \"r\""));
        for (code, says) in [
            (Code::TopicAuthorizationFailed, "lacks WRITE on the topic t"),
            (
                Code::ClusterAuthorizationFailed,
                "has neither WRITE on any topic nor IDEMPOTENT_WRITE on the cluster",
            ),
            (
                Code::TransactionalIdAuthorizationFailed,
                "lacks WRITE or DESCRIBE on the transactional ids that begin with r.",
            ),
        ] {
            assert_eq!(grants.missing_for(code, "t").what(), format!("the router's principal {says}"));
        }
    }
}
