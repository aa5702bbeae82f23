//! The codes of refusals. A code is in the message, in `--json`, in the log and in docs/errors, so that an operator can search for
//! it. It never changes its meaning, and the number of a code that is gone is not used again.

use std::fmt;

use super::Peer;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What a refusal means for events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Nothing: the command did not touch any.
    None,
    /// They wait, and are sent once somebody has acted.
    Late,
    /// Some may be sent twice.
    Doubled,
    /// Some may be missing in Kafka, now or once somebody goes on without them.
    Lost,
}

impl Effect {
    /// In one word, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Effect::None => "none",
            Effect::Late => "late",
            Effect::Doubled => "doubled",
            Effect::Lost => "lost",
        }
    }

    /// As a clause.
    pub fn in_words(self) -> &'static str {
        match self {
            Effect::None => "not affected",
            Effect::Late => "delayed, not lost",
            Effect::Doubled => "some may be sent twice",
            Effect::Lost => "some may be missing in Kafka",
        }
    }
}

/// Defines [`ErrorCode`]: name, number, title, effect, and what that means in particular.
macro_rules! codes {
    ($($name:ident = $number:literal, $title:literal, $effect:ident, $meaning:expr;)+) => {
        /// The code of a refusal, such as `OBR-3001`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode {
            $(#[doc = $title] $name,)+
        }

        impl ErrorCode {
            /// Every code, in the order of their numbers.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$name,)+];

            /// Its number.
            pub fn number(self) -> u16 {
                match self {
                    $(ErrorCode::$name => $number,)+
                }
            }

            /// What has happened, as a clause.
            pub fn title(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $title,)+
                }
            }

            /// What it means for events, unless the refusal knows more ([`Error::meaning`](super::Error::meaning)).
            pub fn effect(self) -> Effect {
                match self {
                    $(ErrorCode::$name => Effect::$effect,)+
                }
            }

            /// Details of the effect, as a clause; empty if the effect says it all.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $meaning,)+
                }
            }
        }
    };
}

const WAIT: &str = "they wait in the log until the router runs";
const BEHIND: &str = "they wait in the log until the router gets past this";
const UNPUBLISHED: &str = "those committed while the table is not published. With checkpoints, the next start stops with OBR-3109 on purpose, and \
     prints the steps that send them";
/// What the lack of a slot means for events.
pub(crate) const UNRETAINED: &str = "nothing retains those committed before the router has a slot of its own; they are only in the table, and \
     `init --backfill` sends them";
const GONE: &str = "Kafka has events that Postgres no longer has";

codes! {
    // 1000: Postgres, its server and its roles
    PostgresUnusable = 1001, "unexpected answer from Postgres", Late, WAIT;
    PostgresLogin = 1002, "Postgres rejects the login", Late, WAIT;
    PostgresTls = 1003, "no TLS connection to Postgres", Late, WAIT;
    PostgresAccess = 1004, "the role may not connect or replicate, or the database does not exist", Late, WAIT;
    PostgresRefused = 1005, "Postgres rejects a statement", Late, WAIT;
    ConnectionString = 1006, "the connection string cannot be used", Late, WAIT;
    PostgresUnreachable = 1007, "Postgres cannot be reached", Late, WAIT;
    WalLevel = 1101, "wal_level is not logical", Lost, UNRETAINED;
    ServerUnsuitable = 1102, "the server is too old, or a standby", None, "";
    NoFreeSlot = 1103, "there is no room for another replication slot or walsender", Lost, UNRETAINED;
    RouterSchema = 1104, "the router's schema was made by a different version", None, "";
    InitIncomplete = 1105, "init was interrupted, or refused by the server", None, "";
    StandbyAway = 1106, "a standby that Postgres waits for is not connected", Late, WAIT;
    NotPrepared = 1107, "the database is not prepared for the router", None, "";
    // 2000: configuration, command line and process
    CommandLine = 2001, "invalid arguments on the command line", None, "";
    Configuration = 2002, "the configuration is invalid", Late, WAIT;
    KafkaProperties = 2003, "a Kafka property cannot be used", Late, WAIT;
    Contracts = 2004, "the contracts contain errors", None, "";
    ProcessLimits = 2005, "a limit on threads or open files is too low", Late, WAIT;
    AdminEndpoint = 2006, "the admin endpoint cannot listen", None, "";
    Environment = 2007, "an environment variable cannot be used", Late, WAIT;
    InputOutput = 2008, "a file, standard input or standard output cannot be read or written", None, "";
    DebeziumConfiguration = 2009, "the Debezium configuration cannot be translated", None, "";
    ContractChange = 2010, "a change of a contract is incompatible", None, "";
    RouterNotReady = 2011, "no router answers, or it is not ready", Late, WAIT;
    // 3000: slot and position
    SlotMissing = 3001, "the replication slot does not exist", Lost, "if the slot existed before, those committed after the router's last position";
    SlotOfAnotherPlugin = 3002, "the slot uses another output plugin", Lost, UNRETAINED;
    SlotOfAnotherDatabase = 3003, "the slot belongs to another database", Lost, "if the database in the configuration is the right one, those committed before the router has a slot of its own";
    SlotLost = 3004, "Postgres has invalidated the slot", Lost, "those committed after the position in the message";
    SlotTwoPhase = 3005, "the slot was created with two_phase", Late, WAIT;
    SlotNotStarted = 3006, "Postgres cannot stream from the slot", Lost, "if the slot has been invalidated or dropped, which `check` shows";
    SlotHeadroom = 3007, "Postgres is about to invalidate the slot", Lost, "those that are not sent before then";
    AnotherCluster = 3101, "the checkpoint is from another database cluster", Lost, "those the former cluster had not sent";
    AnotherSlot = 3102, "the checkpoint belongs to another slot", Lost, "those between the two positions, or they are sent twice";
    TimelineLeftBefore = 3103, "the server's timeline branched off before the router's position", Lost, "those committed on this server before the slot's position, unless the slot was there before; and Kafka has events that Postgres no longer has";
    TimelineUnrelated = 3104, "the server's timeline does not descend from the router's", Lost, "those committed on this server before the slot's position, or they are sent twice; and Kafka may have events that Postgres no longer has";
    LogEndsBefore = 3105, "the server's log ends before the router's position", Doubled, GONE;
    LogMismatch = 3106, "the server's log differs from the one that the router has read", Doubled, GONE;
    SlotAhead = 3107, "the slot is ahead of the checkpoint", Lost, "those between the two positions, unless they were sent some other way";
    ReadByAnotherRouter = 3108, "another router has read the slot since", Doubled, "those that it has sent";
    AlteredWhileAway = 3109, "the publication or a table was altered while the router was stopped", Lost, "those committed while the table was not published; the steps send them";
    CheckpointLost = 3110, "no checkpoint is stored, although the slot is not new", Lost, "if the slot was moved or the table unpublished meanwhile; otherwise some may be sent twice";
    CheckpointUnreadable = 3111, "the checkpoint cannot be read", Late, WAIT;
    StreamUnreadable = 3112, "Postgres cannot decode the log at the slot's position", Late, "they stay in the log, and the steps send them";
    PositionUnusable = 3113, "the position, bookmark or slot cannot be used as asked", None, "";
    DeadLettersLost = 3114, "parked events are lost", Lost, "those whose rows are gone";
    BookmarkUnknown = 3115, "there is no such bookmark", None, "";
    // 4000: publication and outbox table
    PublicationMissing = 4001, "the publication does not exist", Lost, UNPUBLISHED;
    PublicationWithoutTable = 4002, "the publication does not publish the outbox table", Lost, UNPUBLISHED;
    PublicationWithoutInserts = 4003, "the publication does not publish inserts", Lost, UNPUBLISHED;
    ColumnList = 4004, "the publication's column list leaves out columns that the router needs", Late, "rows are complete in the log, and the steps send them";
    PublishedByPartition = 4005, "the publication publishes partitions instead of the outbox table", Lost, UNPUBLISHED;
    AlteredWhileRunning = 4006, "the publication or a table was altered while the router ran", Lost, "those committed while the table was not published; the next start prints the steps that send them";
    TableMissing = 4101, "the outbox table does not exist, or is not a table", Late, "they wait in the log, also those written under a new name of the table; if there is none, applications cannot write any";
    TableNotLogged = 4102, "the outbox table is unlogged", Lost, "those written while it is unlogged are only in the table; the steps send them";
    ColumnUnusable = 4103, "a column is missing or has an unusable type", Late, WAIT;
    RowsElsewhere = 4104, "rows of the outbox table are in a relation that is not published under its name", Lost, "those in that relation; the steps send them";
    // 5000: Kafka
    KafkaLogin = 5001, "the brokers refuse the credentials, or no token comes", Late, WAIT;
    KafkaRefused = 5002, "the brokers refuse a request", Late, WAIT;
    KafkaTransactions = 5003, "the brokers do not let the router begin transactions", Late, WAIT;
    TopicUnavailable = 5004, "a topic or one of its partitions cannot be used", Late, WAIT;
    PositionsTopic = 5005, "the positions topic cannot be used", Late, WAIT;
    TopicAtRisk = 5006, "a topic's settings put events at risk", Late, "they wait in the log until the topic can acknowledge them";
    KafkaUnreachable = 5007, "the brokers cannot be reached", Late, WAIT;
    // 6000: events
    EventUnroutable = 6001, "an event cannot be turned into a record", Late, BEHIND;
    EventContract = 6002, "an event violates its contract", Late, BEHIND;
    EventTooLarge = 6003, "an event is larger than Kafka accepts", Late, BEHIND;
    EventTopic = 6004, "the topic of an event is missing or cannot be used", Late, BEHIND;
    EventRefused = 6005, "Kafka refuses an event", Late, BEHIND;
    RowUpdated = 6006, "a row of the outbox was updated", Late, "those after the update wait in the log";
    MessageUndecodable = 6007, "a logical message is not an event", Late, BEHIND;
    RowUndecodable = 6008, "a row lacks a column that the router needs", Late, BEHIND;
    TableRenamed = 6009, "the outbox table was renamed", Late, BEHIND;
    EventsParked = 6101, "events are parked, but parking is switched off", Late, "the parked ones are in their table, the others wait in the log";
    DeadLetterUnreadable = 6102, "a parked event cannot be read", Late, "the parked ones are in their table, the others wait in the log";
    DeadLetterTable = 6103, "the table of parked events is missing or not accessible", Late, BEHIND;
    DeadLetterUnknown = 6104, "no such event is parked", None, "";
    // 7000: shards
    ShardsUnsupported = 7001, "the server or the table cannot be divided into shards", Late, WAIT;
    ShardFilter = 7002, "the shards' publications overlap, or leave rows out", Lost, "those in no shard; those in two are sent twice";
    ShardChangeInterrupted = 7003, "a change of the number of shards was interrupted", Late, WAIT;
    ShardsHandedOver = 7004, "another number of shards has taken over", Late, "the routers of that number send them";
    OtherShardSlots = 7005, "slots of another number of shards exist", Late, "those in these slots wait";
    ShardChangeRefused = 7006, "the number of shards cannot be changed", None, "";
    // 8000: check --end-to-end
    EndToEndNotWritten = 8001, "the event of the end-to-end check was not written", None, "";
    EndToEndNotConfirmed = 8002, "no router has confirmed the event of the end-to-end check", Late, "events wait in the log until the router gets past them";
    EndToEndNotFound = 8003, "the event of the end-to-end check is not in its topic", None, "";
    // 8100: a consumer's inbox
    InboxMissing = 8101, "the database has no inbox", None, "";
    InboxEventUnknown = 8102, "the inbox has no such event", None, "";
    InboxEventTaken = 8103, "a worker has the event", None, "";
    // 8200: replays, backfills and prunes of rows
    ReplayUnknown = 8201, "there is no such replay to continue", None, "";
    ReplayRunning = 8202, "another replay, or a prune of the table, is running", None, "";
    ReplayTooLarge = 8203, "more events match than may be sent again", None, "";
    ReplayImpossible = 8204, "the rows cannot be sent again from the table", None, "";
    BackfillImpossible = 8205, "rows from before the slot cannot be sent", Late, "those of the table and those in the slot wait until the router runs";
    PruneImpossible = 8206, "old rows cannot be deleted", None, "";
    PruneRunning = 8207, "another prune or a replay of the table is running", None, "";
    ArchiveUnusable = 8208, "an archive file is altered, truncated, or cannot be used", None, "";
    PartitionsImpossible = 8209, "partitions of the outbox cannot be created or dropped", None, "";
    // 9000
    Bug = 9001, "a bug in outbox-router", Late, WAIT;
}

impl ErrorCode {
    /// The server that a running router waits for after this refusal.
    pub fn peer(self) -> Peer {
        if self.number() / 1000 == 5 { Peer::Kafka } else { Peer::Postgres }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OBR-{:04}", self.number())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let code = ErrorCode::ALL.iter().copied().find(|code| code.to_string() == text);
        code.ok_or_else(|| de::Error::custom(format!("no refusal has the code {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_are_read_back() {
        assert!(ErrorCode::ALL.is_sorted_by(|one, other| one.number() < other.number()));
        for code in ErrorCode::ALL {
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(serde_json::from_str::<ErrorCode>(&json).unwrap(), *code, "{json}");
        }
        assert_eq!(ErrorCode::SlotMissing.to_string(), "OBR-3001");
    }
}
