//! The router's own expression for what a publication publishes agrees with `pg_publication_tables`, which cannot be used because it
//! opens every table.

use outbox_router::postgres::catalog::is_published;

use crate::support::outbox::Outbox;
use crate::support::shared;

/// Tables of every kind, with partitions of two levels, in two schemas.
const TABLES: &str = "CREATE SCHEMA other; CREATE TABLE plain (a int); CREATE TABLE other.plain (a int); CREATE UNLOGGED TABLE unlogged (a int); \
     CREATE TABLE parent (a int); CREATE TABLE child () INHERITS (parent); CREATE VIEW seen AS TABLE plain; \
     CREATE TABLE root (a int) PARTITION BY RANGE (a); CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10); \
     CREATE TABLE other.leaf PARTITION OF root FOR VALUES FROM (10) TO (20); \
     CREATE TABLE middle PARTITION OF root FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (a); \
     CREATE TABLE other.low PARTITION OF middle FOR VALUES FROM (20) TO (30)";

#[tokio::test]
async fn published_tables_are_those_of_the_servers_view() {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(TABLES).await;
    let version = u32::try_from(outbox.server_version().await).unwrap();
    let mut contents = vec![
        "",
        "FOR ALL TABLES",
        "FOR TABLE plain, other.plain",
        "FOR TABLE parent",
        "FOR TABLE ONLY parent",
        "FOR TABLE root",
        "FOR TABLE leaf, other.leaf",
        "FOR TABLE middle",
        "FOR TABLE root, leaf",
        "FOR TABLE middle, root, other.low",
    ];
    if version >= 150_000 {
        contents.extend([
            "FOR TABLES IN SCHEMA public",
            "FOR TABLES IN SCHEMA other",
            "FOR TABLES IN SCHEMA other, TABLE root",
            "FOR TABLES IN SCHEMA other, public",
        ]);
    }
    let published = is_published(version);
    let both = format!(
        "SELECT coalesce((SELECT string_agg(schemaname || '.' || tablename, ' ' ORDER BY 1) FROM pg_publication_tables \
         WHERE pubname = 'p' AND schemaname IN ('public', 'other')), ''), \
         coalesce((SELECT string_agg(n.nspname || '.' || c.relname, ' ' ORDER BY 1) FROM pg_publication p CROSS JOIN pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = 'p' AND n.nspname IN ('public', 'other') AND {published}), '')"
    );
    let mut seen = 0;
    for content in contents {
        for via_root in [false, true] {
            outbox
                .execute(&format!(
                    "DROP PUBLICATION IF EXISTS p; CREATE PUBLICATION p {content} WITH (publish_via_partition_root = {via_root})"
                ))
                .await;
            let rows = outbox.query(&both).await;
            let (view, ours): (String, String) = (rows[0].get(0), rows[0].get(1));
            let sorted = |names: &str| {
                let mut names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
                names.sort_unstable();
                names
            };
            assert_eq!(sorted(&ours), sorted(&view), "{content}, by the root: {via_root}");
            seen += sorted(&view).len();
        }
    }
    assert!(seen > 30, "{seen} tables were compared");
}
