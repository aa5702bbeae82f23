//! `import-debezium`

use std::path::PathBuf;

use clap::Args;

pub(super) const HELP: &str = "\
FILE is the JSON that was sent to Kafka Connect's REST interface, its `config` alone, the properties file of a \
standalone worker, or the application.properties of Debezium Server; the format is recognised by the content. The command \
connects to no server and changes nothing.

The configuration goes to standard output, and the findings about settings to standard error: no equivalent and differs \
(records would change, or something would be lost), to do, note, ignored. Passwords are not printed; a finding says where \
to put them.

Exit codes:
  0  the router does everything that the connector did, once the findings marked \"to do\" are done
  1  something differs or has no equivalent
  2  the file cannot be read, or does not configure the outbox event router

Examples:
  outbox-router import-debezium connector.json --bootstrap-servers kafka:9092 > outbox-router.toml
  curl -s connect:8083/connectors/outbox | outbox-router import-debezium -
  outbox-router import-debezium application.properties --json | jq -r .configuration";

/// `import-debezium`
#[derive(Debug, Clone, Args)]
pub struct ImportDebeziumArgs {
    /// The connector's configuration; `-` is standard input
    pub file: PathBuf,

    /// The brokers, which a connector's file does not name
    #[arg(long, value_name = "HOST:PORT")]
    pub bootstrap_servers: Option<String>,

    /// The properties file of Connect's worker, for the brokers, the converters and the producer's settings that the
    /// connector leaves to it
    #[arg(long, value_name = "FILE")]
    pub worker_config: Option<PathBuf>,

    /// Print configuration and findings as one JSON document
    #[arg(long)]
    pub json: bool,
}
