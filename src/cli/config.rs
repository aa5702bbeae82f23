//! `config`

use clap::{Args, Subcommand};

pub(super) const HELP: &str = "\
No server is contacted.

Exit codes:
  0  the configuration is valid
  2  it is not, or usage

Examples:
  outbox-router config show
  outbox-router config validate --json | jq .problems
  outbox-router config schema > outbox-router.schema.json";

const VALIDATE_HELP: &str = "\
Reads the file, the environment, and the files that they name, and reports all problems, each with its line. On success it prints one \
line with the name of the file.

With --json it prints an object with `file`, `valid`, `problems` and `warnings`. A problem has `code`, `file`, `line`, `column` or \
`variable` (null where it does not apply), `problem` and `remedy`.

Exit codes:
  0  the configuration is valid
  2  it is not, or usage";

const SCHEMA_HELP: &str = "\
Editors with TOML support (Even Better TOML, taplo) complete and check the file if its first line names the schema.

Examples:
  outbox-router config schema > outbox-router.schema.json
  sed -i '1i #:schema ./outbox-router.schema.json' outbox-router.toml";

/// `config ...`
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration in effect, with its defaults and without its secrets
    Show,
    /// Check the configuration without a server
    #[command(after_help = VALIDATE_HELP)]
    Validate(ConfigValidateArgs),
    /// Print a JSON Schema of the configuration file, for editors
    #[command(after_help = SCHEMA_HELP)]
    Schema,
}

/// `config validate`
#[derive(Debug, Clone, Args)]
pub struct ConfigValidateArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
