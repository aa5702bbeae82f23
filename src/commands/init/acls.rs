//! `init --print-acls`: the ACLs that the router's principal needs in Kafka, as commands for kafka-acls.sh.

use crate::config::Config;
use crate::sink::kafka::acls::{Grants, idempotent_write};

/// The command lines.
pub(super) fn commands(config: &Config) -> String {
    let mut text =
        "# Replace User:outbox-router with the router's principal; admin.properties has the login of an administrator.\n\n"
            .to_owned();
    for grant in Grants::of(config).iter() {
        text += &format!("# {}\n{}\n\n", grant.comment, grant.command);
    }
    text + &format!(
        "# Only for brokers before 2.8: later ones allow an idempotent producer that may write to a topic (KIP-679).\n# {}\n",
        idempotent_write(config).replace('\n', "\n# "),
    )
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
