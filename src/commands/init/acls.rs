//! `init --print-acls`: the ACLs that the router's principal needs in Kafka, as commands for kafka-acls.sh.

use pg_logical::Secret;

use crate::config::template::Template;
use crate::config::{Config, DeliveryMode};
use crate::error::shell_word;

/// The command lines.
pub(super) fn commands(config: &Config) -> String {
    let mut resources: Vec<(String, String)> = Vec::new();
    for found in config.route.topics().into_iter().map(resource) {
        if !resources.iter().any(|(known, _)| *known == found.0) {
            resources.push(found);
        }
    }
    let mut operations = vec!["Describe", "DescribeConfigs", "Write"];
    if config.topics.create {
        operations.push("Create");
    }
    let operations: Vec<String> =
        operations.into_iter().map(|operation| format!("--operation {operation}")).collect();
    let tool = format!(
        "kafka-acls.sh --bootstrap-server {} --command-config admin.properties --add \\\n  \
         --allow-principal User:outbox-router",
        shell_word(config.kafka.properties.get("bootstrap.servers").map_or("", Secret::reveal))
    );
    let create = if config.topics.create {
        "Create: `[topics] create` is true."
    } else {
        "No Create: `[topics] create` is false."
    };
    let mut text =
        "# Replace User:outbox-router with the router's principal; admin.properties has the login of an administrator.\n\n"
            .to_owned();
    if let Some(topic) = &config.delivery.positions_topic {
        // at its start the router reads its last checkpoint
        let operations = format!("{} --operation Read", operations.join(" "));
        text += &format!(
            "# The topic {topic}, where the router stores its checkpoints. {create}\n{tool} \\\n  {operations} \\\n  \
             --topic {topic} --resource-pattern-type literal\n\n"
        );
    }
    if config.delivery.mode == DeliveryMode::ExactlyOnce {
        for shard in config.every_shard() {
            let name = &shard.name;
            text += &format!(
                "# The transactions of the router {name}: its transactional ids begin with its name and a full stop.\n{tool} \\\n  \
                 --operation Describe --operation Write \\\n  --transactional-id {} --resource-pattern-type prefixed\n\n",
                shell_word(&format!("{name}."))
            );
        }
    }
    for (resource, which) in resources {
        let operations = operations.join(" ");
        text += &format!("# {which}. {create}\n{tool} \\\n  {operations} \\\n  {resource}\n\n");
    }
    text + &format!(
        "# Only for brokers before 2.8: later ones allow an idempotent producer that may write to a topic (KIP-679).\n# {}\n",
        format!("{tool} \\\n  --operation IdempotentWrite --cluster").replace('\n', "\n# "),
    )
}

fn resource(template: &Template) -> (String, String) {
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
    use crate::config::load::load;
    use pg_logical::Environment;

    fn printed(variables: &[(&str, &str)]) -> String {
        let mut env = Environment::empty()
            .with_variable("OUTBOX_ROUTER_POSTGRES__URL", "postgres://router@db/shop")
            .with_variable("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", "kafka-1:9092,kafka-2:9092");
        for (name, value) in variables {
            env = env.with_variable(name, value);
        }
        let config = load(None, &env).unwrap().config;
        commands(&config)
    }

    #[test]
    fn by_prefix() {
        insta::assert_snapshot!(printed(&[]));
    }

    #[test]
    fn one_topic_that_somebody_else_creates() {
        insta::assert_snapshot!(printed(&[
            ("OUTBOX_ROUTER_ROUTE__TOPIC", "orders"),
            ("OUTBOX_ROUTER_TOPICS__CREATE", "false"),
        ]));
    }

    #[test]
    fn exactly_once_takes_transactions() {
        insta::assert_snapshot!(printed(&[("OUTBOX_ROUTER_DELIVERY__MODE", "exactly-once")]));
    }

    /// The router's name contains the name of the database, which may be anything.
    #[test]
    fn a_name_is_one_word_for_the_shell() {
        let text = printed(&[
            ("OUTBOX_ROUTER_DELIVERY__MODE", "exactly-once"),
            ("OUTBOX_ROUTER_NAME", "it's $(touch /tmp/x); `id`"),
            ("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", "a:1; id"),
        ]);
        assert!(text.contains("--transactional-id 'it'\\''s $(touch /tmp/x); `id`.' --resource"), "{text}");
        assert!(text.contains("--bootstrap-server 'a:1; id' --command-config"), "{text}");
    }

    #[test]
    fn any_topic() {
        insta::assert_snapshot!(printed(&[("OUTBOX_ROUTER_ROUTE__TOPIC", "${aggregate_type}.events")]));
    }
}
