//! The brokers and their topics. `topics` checks the topics once the outbox is known too.

use super::address::{host, is_local};
use super::allowed_topics;
use super::finding::Findings;
use crate::config::Config;
use crate::config::template::Template;
use crate::error::{Error, Peer};
use crate::quantity::counted;
use crate::sink::kafka::checkpoint_topic::TopicSettings;
use crate::sink::kafka::cluster_info::{ClusterInfo, Settings, TopicInfo};
use crate::sink::kafka::durability::caps_min_insync;

/// The settings of more topics than this are not requested.
const MAX_TOPICS: usize = 200;

/// What the brokers report.
pub(super) struct KafkaState {
    pub(super) brokers: usize,
    /// The names of all topics that the templates can name.
    pub(super) names: Vec<String>,
    /// The first of these topics, each with its settings if the principal may read them.
    pub(super) topics: Vec<(TopicInfo, Option<Settings>)>,
    /// The positions topic, if it exists, with its settings if the principal may read them.
    pub(super) positions: Option<(TopicInfo, Option<Settings>)>,
    /// With which settings the positions topic could be created, and why not with more; `None` if it exists, or is not to be created.
    pub(super) may_create_positions: Option<Result<(TopicSettings, Option<String>), Error>>,
    /// The settings that a new topic inherits, if the principal may read them.
    pub(super) defaults: Option<Settings>,
    /// Whether the brokers take the replication factor where `min.insync.replicas` is larger; `None` if that is unknown.
    pub(super) capped: Option<bool>,
    /// For each topic that the router would have to create, whether it could be. One name stands for all topics of a template.
    pub(super) may_create: Vec<(String, Result<(), Error>)>,
}

/// Asks the brokers.
pub(super) async fn check(config: &Config) -> (Findings, Option<KafkaState>) {
    let mut findings = Findings::default();
    encryption(config, &mut findings);
    let kafka_state = match ClusterInfo::open(config).await {
        Ok(cluster_info) => ask_cluster(&cluster_info, config, &mut findings).await,
        Err(error) => Err(error),
    };
    match kafka_state {
        Ok(kafka_state) => (findings, Some(kafka_state)),
        Err(error) => {
            findings.failure("kafka_connection", error, Peer::Kafka.if_unreachable());
            (findings, None)
        }
    }
}

/// Warns if a broker on another machine does not have to prove its identity.
fn encryption(config: &Config, findings: &mut Findings) {
    let property = |name: &str| {
        config.kafka.properties.get(name).map(|value| value.reveal().to_ascii_lowercase()).unwrap_or_default()
    };
    let tokens = property("sasl.oauthbearer.token.endpoint.url");
    if let Some(rest) = tokens.strip_prefix("http://")
        && !is_local(host(rest.split('/').next().unwrap_or_default()))
    {
        findings.warning(
            "security_protocol",
            "the client secret and the tokens cross the network in clear text, because the token server's URL begins with http://",
            "Use an https:// URL for sasl.oauthbearer.token.endpoint.url under `[kafka]`",
        );
    }
    let servers = property("bootstrap.servers");
    let Some(remote) = servers.split(',').map(str::trim).find(|server| !is_local(host(server))) else {
        return;
    };
    let protocol = property("security.protocol");
    let what = match protocol.as_str() {
        "ssl" | "sasl_ssl" if property("enable.ssl.certificate.verification") == "false" => {
            "enable.ssl.certificate.verification is false, so another server could impersonate it"
        }
        "ssl" | "sasl_ssl" if property("ssl.endpoint.identification.algorithm") == "none" => {
            "ssl.endpoint.identification.algorithm is none, so anybody with a certificate of the same authority could impersonate it"
        }
        "ssl" | "sasl_ssl" => return,
        "sasl_plaintext" => {
            "the connection is not encrypted, so records, and with PLAIN or OAUTHBEARER the credentials too, can be read on the way"
        }
        _ => "the connection is not encrypted, so records can be read and changed on the way",
    };
    findings.warning(
        "security_protocol",
        format!("{remote} is not this machine, and {what}"),
        "Under `[kafka]` set security.protocol to ssl or sasl_ssl, and ssl.ca.location if the authority is not a public one, and leave \
         the verification on",
    );
}

async fn ask_cluster(
    cluster_info: &ClusterInfo,
    config: &Config,
    findings: &mut Findings,
) -> Result<KafkaState, Error> {
    let templates = config.route.topics();
    let mut cluster = cluster_info.cluster().await?;
    let defaults = match cluster.brokers.first() {
        Some(broker) => cluster_info.broker_settings(*broker).await.ok(),
        None => None,
    };
    let version = match &defaults {
        None => String::new(),
        // Kafka 4.0 removed this setting
        Some(settings) => match settings.get("inter.broker.protocol.version") {
            Some(version) => format!(", which speak version {version} among themselves"),
            None => ", of version 4.0 or later".to_owned(),
        },
    };
    let brokers = cluster.brokers.len();
    findings.ok("kafka_connection", format!("{}{version}", counted(brokers, "broker")));

    let positions = match &config.delivery.positions_topic {
        Some(name) => cluster.topics.iter().find(|topic| topic.name == *name).cloned(),
        None => None,
    };
    let positions = match positions {
        Some(topic) => {
            let settings = cluster_info.topic_settings(&[&topic.name]).await?.into_iter().next();
            Some((topic, settings.and_then(Result::ok)))
        }
        None => None,
    };
    let missing =
        config.delivery.positions_topic.as_ref().filter(|_| positions.is_none() && config.topics.create);
    let may_create_positions = match missing {
        Some(topic) => Some(cluster_info.may_create_positions(topic).await),
        None => None,
    };
    cluster.topics.retain(|topic| {
        let made = |template: &&Template| template.may_produce(&topic.name);
        let own = config.delivery.positions_topic.as_deref() == Some(topic.name.as_str());
        templates.iter().any(made) && !topic.name.starts_with("__") && !own
    });
    let names: Vec<String> = cluster.topics.iter().map(|topic| topic.name.clone()).collect();
    let shown = cluster.topics.len().min(MAX_TOPICS);
    if shown < cluster.topics.len() {
        let what =
            format!("{} topics; only the settings of the first {shown} are checked", cluster.topics.len());
        findings.skipped("topics", what);
        cluster.topics.truncate(shown);
    }
    let described: Vec<&str> = cluster.topics.iter().map(|topic| topic.name.as_str()).collect();
    let settings =
        if described.is_empty() { Vec::new() } else { cluster_info.topic_settings(&described).await? };
    let settings = settings.into_iter().map(Result::ok).chain(std::iter::repeat(None));
    let topics: Vec<_> = cluster.topics.into_iter().zip(settings).collect();

    let may_be_missing = templates
        .iter()
        .filter(|template| config.topics.create && allowed_topics::may_be_written(config, template));
    let missing: Vec<String> = may_be_missing
        .filter_map(|template| match template.fixed() {
            Some(fixed) if names.iter().any(|name| name == fixed) => None,
            Some(fixed) => Some(fixed.to_owned()),
            None => Some(format!("{}outbox-router-check", template.prefix())),
        })
        .collect();
    let asked: Vec<&str> = missing.iter().map(String::as_str).collect();
    let may_create = if asked.is_empty() { Vec::new() } else { cluster_info.may_create_each(&asked).await };
    let may_create = missing.into_iter().zip(may_create).collect();
    // Kafka 4.0 removed this setting
    let version = |settings: &Settings| caps_min_insync(settings.get("inter.broker.protocol.version"));
    let capped = defaults.as_ref().map(version);
    Ok(KafkaState { brokers, names, topics, positions, may_create_positions, defaults, capped, may_create })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load;
    use pg_logical::Environment;

    fn warnings(variables: &[(&str, &str)]) -> usize {
        let mut env =
            Environment::empty().with_variable("OUTBOX_ROUTER_POSTGRES__URL", "postgres://router@db/shop");
        for (name, value) in variables {
            env = env.with_variable(&format!("OUTBOX_ROUTER_KAFKA__{name}"), value);
        }
        let mut findings = Findings::default();
        encryption(&load(None, &env).unwrap().config, &mut findings);
        findings.0.len()
    }

    #[test]
    fn only_a_remote_broker_has_to_prove_who_it_is() {
        let ssl = ("SECURITY_PROTOCOL", "SASL_SSL");
        for (servers, others, expected) in [
            ("kafka:9092", &[][..], 1),
            ("localhost:9092,kafka:9092", &[], 1),
            ("kafka:9092", &[("SECURITY_PROTOCOL", "sasl_plaintext")], 1),
            ("kafka:9092", &[ssl], 0),
            ("kafka:9092", &[ssl, ("ENABLE_SSL_CERTIFICATE_VERIFICATION", "false")], 1),
            ("kafka:9092", &[ssl, ("SSL_ENDPOINT_IDENTIFICATION_ALGORITHM", "none")], 1),
            ("localhost:9092", &[], 0),
            ("127.0.0.1:9092, [::1]:9092,PLAINTEXT://localhost:1", &[], 0),
            ("kafka:9092", &[ssl, ("SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL", "http://login:80/token")], 1),
            ("kafka:9092", &[ssl, ("SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL", "https://login/token")], 0),
            ("kafka:9092", &[ssl, ("SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL", "http://localhost:80/token")], 0),
        ] {
            let variables = [&[("BOOTSTRAP_SERVERS", servers)], others].concat();
            assert_eq!(warnings(&variables), expected, "{variables:?}");
        }
    }
}
