//! Every refusal, how to get there, and what is left after its steps were typed as printed. docs/errors is made of this table and of
//! the messages that its tests have seen.

mod commands;
mod first_slot;
pub(crate) mod page;
mod rows_elsewhere;
pub(crate) mod slot;
mod stream;
pub(crate) mod typist;

use std::collections::BTreeSet;

use outbox_router::error::ErrorCode;

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use typist::Typist;

/// How the remedy of a code is tested.
enum Proof {
    /// These tests get into the situation and type what is printed.
    Typed(&'static [&'static str]),
    /// There is nothing to type, because only the operator knows the value: why.
    Decides(&'static str),
}

use ErrorCode as Code;
use Proof::{Decides, Typed};

const PASSWORDS: &str = "the operator knows the right credentials, certificate or server";
const VALUE: &str = "the message names the setting and what it may be";
const SERVER: &str = "a server has to be configured, started or replaced";
const ARGUMENTS: &str = "the message names the right arguments";

/// The table of situations.
const PROOFS: &[(Code, Proof)] = &[
    (Code::PostgresUnusable, Decides(SERVER)),
    (Code::PostgresLogin, Decides(PASSWORDS)),
    (Code::PostgresTls, Decides(PASSWORDS)),
    (Code::PostgresAccess, Typed(&["situation_role_without_replication"])),
    (Code::PostgresRefused, Typed(&["situation_init_under_the_routers_role"])),
    (Code::ConnectionString, Decides(VALUE)),
    (Code::PostgresUnreachable, Decides(SERVER)),
    (Code::WalLevel, Decides(SERVER)),
    (Code::ServerUnsuitable, Decides(SERVER)),
    (Code::NoFreeSlot, Decides(SERVER)),
    (Code::RouterSchema, Decides("the version of the router has to be changed")),
    (Code::InitIncomplete, Decides("the other session has to end; then init is typed again")),
    (Code::StandbyAway, Decides(SERVER)),
    (Code::NotPrepared, Typed(&["situation_database_not_prepared"])),
    (Code::CommandLine, Decides(ARGUMENTS)),
    (Code::Configuration, Decides(VALUE)),
    (Code::KafkaProperties, Decides(VALUE)),
    (Code::Contracts, Decides("the message names the place in the schema")),
    (Code::ProcessLimits, Decides("a limit has to be raised where the process is started")),
    (Code::AdminEndpoint, Decides(VALUE)),
    (Code::Environment, Decides(VALUE)),
    (Code::InputOutput, Decides(ARGUMENTS)),
    (Code::DebeziumConfiguration, Decides(VALUE)),
    (Code::ContractChange, Decides("the message names the change of the schema")),
    (Code::RouterNotReady, Decides("`status` says what the router waits for")),
    (
        Code::SlotMissing,
        Typed(&[
            "situation_slot_never_created_with_or_without_the_rows",
            "situation_slot_dropped_with_a_bookmark",
            "situation_slot_dropped_without_a_bookmark",
            "situation_slot_dropped_under_the_routers_role",
            "situation_slot_dropped_beside_a_table_without_created_at",
            "situation_slot_dropped_beside_referenced_rows",
            "slot_dropped_is_replaced_as_printed_without_a_hole",
        ]),
    ),
    (Code::SlotOfAnotherPlugin, Typed(&["situation_slot_of_another_plugin"])),
    (Code::SlotOfAnotherDatabase, Decides(VALUE)),
    (Code::SlotLost, Typed(&["slot_lost_while_the_router_is_stopped_is_explained_by_run_check_and_status"])),
    (Code::SlotTwoPhase, Typed(&["situation_slot_of_prepared_transactions"])),
    (Code::SlotNotStarted, Decides("check names the state of the slot, with steps of its own")),
    (Code::SlotHeadroom, Decides(SERVER)),
    (Code::AnotherCluster, Typed(&["resume_conflict_if_another_cluster_answers"])),
    (
        Code::AnotherSlot,
        Typed(&[
            "situation_slot_renamed_in_the_configuration",
            "situation_slot_renamed_to_one_that_begins_later",
            "situation_slot_renamed_unpublished",
            "situation_slot_changed",
            "situation_slot_replaced",
        ]),
    ),
    (
        Code::TimelineLeftBefore,
        Typed(&["failover_to_a_standby_that_is_behind_is_refused_with_both_positions"]),
    ),
    (Code::TimelineUnrelated, Decides("the operator knows the present primary")),
    (Code::LogEndsBefore, Typed(&["resume_conflict_if_the_server_was_restored_from_a_backup"])),
    (Code::LogMismatch, Typed(&["resume_conflict_if_a_restored_log_has_grown_past_the_position"])),
    (
        Code::SlotAhead,
        Typed(&[
            "situation_slot_moved_by_somebody_else",
            "situation_slot_moved_past_a_long_transaction",
            "situation_slot_moved_and_publication_dropped_with_a_bookmark",
            "situation_slot_and_publication_dropped",
            "old_kafka_data_is_named_and_the_bookmark_sends_the_missing_events_again",
            "old_kafka_data_is_named_and_the_statement_sends_the_missing_rows_again",
        ]),
    ),
    (Code::ReadByAnotherRouter, Decides("the operator knows which name is right")),
    (
        Code::AlteredWhileAway,
        Typed(&[
            "situation_publication_created_again_while_the_router_was_away",
            "situation_publication_created_again_beside_an_open_transaction",
            "situation_publication_created_again_for_referenced_rows",
            "recovery_steps_send_events_after_publication_is_created_again_unseen",
        ]),
    ),
    (
        Code::CheckpointLost,
        Typed(&[
            "a_lost_checkpoint_is_replaced_by_a_reset_to_the_bookmark_that_the_refusal_names",
            "situation_checkpoint_lost",
            "situation_renamed",
            "situation_name_changed",
        ]),
    ),
    (
        Code::CheckpointUnreadable,
        Typed(&["checkpoints_that_cannot_be_read_stop_the_router_until_they_are_deleted"]),
    ),
    (Code::StreamUnreadable, Typed(&["recovery_steps_send_events_that_the_server_cannot_decode"])),
    (Code::PositionUnusable, Decides(ARGUMENTS)),
    (Code::DeadLettersLost, Decides("the application's data has to be looked at")),
    (Code::BookmarkUnknown, Decides(ARGUMENTS)),
    (
        Code::PublicationMissing,
        Typed(&[
            "situation_publication_dropped",
            "situation_publication_dropped_under_the_routers_role",
            "situation_publication_dropped_without_checkpoints",
        ]),
    ),
    (
        Code::PublicationWithoutTable,
        Typed(&[
            "situation_publication_emptied",
            "situation_publication_of_another_table",
            "situation_first_slot_without_the_table",
        ]),
    ),
    (
        Code::PublicationWithoutInserts,
        Typed(&[
            "situation_publication_without_inserts",
            "situation_publication_of_others_without_inserts",
            "situation_first_slot_without_inserts",
        ]),
    ),
    (
        Code::ColumnList,
        Typed(&[
            "rows_without_a_required_column_of_the_publications_column_list_are_sent_after_all",
            "situation_first_slot_with_a_column_list",
            "situation_first_slot_with_a_column_list_beside_other_tables",
        ]),
    ),
    (Code::PublishedByPartition, Typed(&["situation_publication_of_partitions"])),
    (Code::AlteredWhileRunning, Typed(&["situation_publication_created_again_while_the_router_runs"])),
    (Code::TableMissing, Typed(&["situation_table_renamed", "situation_table_dropped"])),
    (
        Code::TableNotLogged,
        Typed(&[
            "situation_table_unlogged",
            "situation_table_unlogged_and_unpublished",
            "situation_first_slot_of_an_unlogged_table",
        ]),
    ),
    (Code::ColumnUnusable, Decides(VALUE)),
    (
        Code::RowsElsewhere,
        Typed(&[
            "situation_rows_in_a_table_that_inherits",
            "situation_rows_in_a_table_that_inherits_while_the_router_runs",
            "situation_rows_in_an_unlogged_partition",
            "situation_rows_elsewhere_before_there_is_a_slot",
        ]),
    ),
    (Code::KafkaLogin, Decides(PASSWORDS)),
    (Code::KafkaRefused, Decides(SERVER)),
    (Code::KafkaTransactions, Decides(SERVER)),
    (Code::TopicUnavailable, Decides(SERVER)),
    (Code::PositionsTopic, Typed(&["a_positions_topic_that_loses_or_refuses_checkpoints"])),
    (Code::TopicAtRisk, Decides(SERVER)),
    (Code::KafkaUnreachable, Decides(SERVER)),
    (
        Code::EventUnroutable,
        Typed(&[
            "situation_event_without_a_topic",
            "situation_event_without_a_topic_is_parked",
            "bad_input_skipped_as_advised_skips_only_its_transaction",
        ]),
    ),
    (Code::EventContract, Typed(&["situation_event_that_violates_its_contract"])),
    (Code::EventTooLarge, Typed(&["situation_event_that_is_too_large"])),
    (Code::EventTopic, Decides("the topic has to be changed; the event is skipped as one of OBR-6001 is")),
    (Code::EventRefused, Decides("the topic has to be changed; the event is skipped as one of OBR-6001 is")),
    (Code::RowUpdated, Typed(&["situation_row_updated"])),
    (Code::MessageUndecodable, Typed(&["situation_message_that_is_not_an_event"])),
    (Code::RowUndecodable, Typed(&["rows_that_an_earlier_column_list_left_incomplete_are_sent_after_all"])),
    (Code::TableRenamed, Decides(VALUE)),
    (Code::EventsParked, Decides("whether to retry or discard them has to be decided")),
    (Code::DeadLetterUnreadable, Decides("the row has to be looked at")),
    (Code::DeadLetterTable, Decides("init has to be run as an administrator, with the router's role")),
    (Code::DeadLetterUnknown, Decides(ARGUMENTS)),
    (Code::ShardsUnsupported, Decides(VALUE)),
    (Code::ShardFilter, Decides("no router may run meanwhile, which the operator has to see to")),
    (Code::ShardChangeInterrupted, Typed(&["shards_do_not_start_until_an_interrupted_handover_is_complete"])),
    (Code::ShardsHandedOver, Decides(VALUE)),
    (Code::OtherShardSlots, Decides("whether the slots are needed has to be decided")),
    (Code::ShardChangeRefused, Decides(ARGUMENTS)),
    (Code::EndToEndNotWritten, Decides("the role, the columns or the rules have to be chosen")),
    (Code::EndToEndNotConfirmed, Decides("`status` says what the router waits for")),
    (Code::EndToEndNotFound, Decides("the configurations have to be compared")),
    (Code::InboxMissing, Decides("the operator knows the database and its administrator")),
    (Code::InboxEventUnknown, Decides(ARGUMENTS)),
    (Code::InboxEventTaken, Decides("the worker has to end, or its lease to expire")),
    (Code::ReplayUnknown, Decides(ARGUMENTS)),
    (Code::ReplayRunning, Decides("the other replay has to end")),
    (Code::ReplayTooLarge, Decides(ARGUMENTS)),
    (Code::ReplayImpossible, Decides("the operator knows what the table has, and what the records need")),
    (
        Code::BackfillImpossible,
        Decides("the operator knows who has moved the slot, and what the records need"),
    ),
    (Code::PruneImpossible, Decides("the message names the object and who owns it")),
    (Code::PruneRunning, Decides("the other process has to end")),
    (Code::ArchiveUnusable, Decides("somebody has to find an intact copy, or correct the disk or the name")),
    (Code::PartitionsImpossible, Decides("the operator knows which table applications should write to")),
    (Code::Bug, Decides("it has to be reported")),
];

#[test]
fn situations_have_every_code_in_order() {
    let codes: Vec<Code> = PROOFS.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, Code::ALL);
}

/// Which events are in Kafka after the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrive {
    /// All, each once.
    Once,
    /// All, some of them twice.
    AtLeastOnce,
    /// All but these.
    Without(&'static [u64]),
}

/// A router between an outbox and Kafka, whose events have numbers.
struct Scene {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
    written: u32,
}

impl Scene {
    async fn new() -> Self {
        Self::of(Outbox::new().await)
    }

    fn of(outbox: Outbox) -> Self {
        let kafka = Kafka::shared();
        let settings = Settings::new(&outbox, &kafka);
        Scene { outbox, kafka, settings, written: 0 }
    }

    /// From now on the router has the role that `init --role` creates.
    async fn is_of_a_role(&mut self) {
        let role = format!("{}_router", self.outbox.name);
        succeeded(self.settings.run_async(&["init", "--role", &role]).await, &[]);
        let url = self.outbox.url().replace("//postgres@", &format!("//{role}@"));
        self.settings = self.settings.clone().set("postgres.url", url);
    }

    /// Writes events while no router runs.
    async fn writes(&mut self, count: u32) {
        self.outbox.insert_numbers("order", "a", self.written..self.written + count).await;
        self.written += count;
    }

    /// A router sends events, and is left running.
    async fn delivers(&mut self, count: u32) -> Router {
        let router = Router::active(&self.settings).await;
        self.writes(count).await;
        self.outbox.all_confirmed().await;
        router
    }

    /// A router sends events and stops.
    async fn delivered(&mut self, count: u32) {
        self.delivers(count).await.stop().await;
    }

    async fn sql(&self, sql: &str) {
        self.outbox.execute(&sql.replace("SLOT", &self.outbox.name)).await;
    }

    /// Starts a router that is refused with `code`, types the way out called `way`, and counts.
    async fn refused(&mut self, code: Code, exit: i32, way: &str, arrive: Arrive) {
        let ended = Router::start(&self.settings).exits(exit).await;
        self.ended(&ended, code, way, arrive, &[]).await;
    }

    /// The same with a router that has ended. `next` are the refusals that the steps announce, which are accepted.
    async fn ended(&mut self, ended: &Ended, code: Code, way: &str, arrive: Arrive, next: &[Code]) {
        self.keeps(ended, code);
        let outbox = &self.outbox;
        let mut typist = Typist::new(outbox, &self.settings);
        typist.types(ended, way).await;
        let next: Vec<String> = next.iter().map(Code::to_string).collect();
        assert_eq!(typist.refusals, next, "the refusals on the way");
        let (router, settings) = typist.done();
        self.settings = settings;
        self.writes(1).await;
        self.count(arrive).await;
        router.stop().await;
        // nothing stands in the way of the next start, either
        Router::active(&self.settings).await.stop().await;
    }

    /// Types the way out with this name, and does not start the router.
    async fn mends(&mut self, ended: &Ended, code: Code, way: &str) {
        self.keeps(ended, code);
        Typist::new(&self.outbox, &self.settings).types_steps(ended, way).await;
    }

    fn keeps(&self, ended: &Ended, code: Code) {
        self.keeps_masking(ended, code, &[]);
    }

    /// The same with further texts that differ from run to run, and their replacements.
    fn keeps_masking(&self, ended: &Ended, code: Code, further: &[(&str, &str)]) {
        assert_eq!(ended.code(), code.to_string(), "{}", ended.log);
        let known = [(self.outbox.address(), "HOST"), (self.outbox.name.as_str(), "NAME")];
        page::keep(ended.message(), &[further, &known].concat());
    }

    /// Waits until everything has arrived that is to arrive.
    async fn count(&self, arrive: Arrive) {
        let missing: &[u64] = if let Arrive::Without(missing) = arrive { missing } else { &[] };
        let expected: Vec<u64> = (0..u64::from(self.written)).filter(|n| !missing.contains(n)).collect();
        let numbers = async || {
            let mut numbers: Vec<u64> = self
                .kafka
                .records(&self.outbox.name)
                .await
                .iter()
                .filter(|record| record.value.is_some())
                .map(Record::number)
                .collect();
            numbers.sort_unstable();
            numbers
        };
        crate::support::eventually::eventually(&format!("{expected:?} arrive"), async || {
            let distinct: BTreeSet<u64> = numbers().await.into_iter().collect();
            distinct.into_iter().eq(expected.iter().copied()).then_some(())
        })
        .await;
        if arrive != Arrive::AtLeastOnce {
            assert_eq!(numbers().await, expected);
        }
    }
}
