//! Row-level security of the tables that this program reads. Where a policy applies to a role, its queries fail, because every session
//! has `row_security = off`. `check` and `init` look for such policies before.

use pg_logical::QueryError;
use pg_logical::quoting::{identifier, literal};
use pg_logical::session::Session;

use crate::config::TableName;
use crate::error::{Error, ErrorCode, Remedy, Step};

/// The tables to which a policy applies, for one role.
#[derive(Debug)]
pub struct Restricted {
    /// Tables of the router's schema, as in SQL.
    pub own: Vec<String>,
    /// Outbox tables, as in SQL.
    pub outboxes: Vec<String>,
    role: String,
}

impl Restricted {
    /// What applies to `role`, by default the role of the session. The tables need not exist.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn query(
        session: &mut Session,
        role: Option<&str>,
        outboxes: &[TableName],
    ) -> Result<Self, QueryError> {
        let outboxes: Vec<String> = outboxes
            .iter()
            .map(|table| format!("({}, {})", literal(&table.schema), literal(&table.name)))
            .chain(["(NULL, NULL)".to_owned()])
            .collect();
        // as check_enable_rls in the sources of Postgres; row_security_active is only for the role of the session
        let sql = format!(
            "SELECT n.nspname = 'outbox_router', pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname), r.rolname \
             FROM pg_catalog.pg_roles r LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             AND (n.nspname = 'outbox_router' OR (n.nspname, c.relname) IN ({}))) \
             ON c.relrowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls \
             AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE')) \
             WHERE r.rolname = {} ORDER BY 2",
            outboxes.join(", "),
            role.map_or_else(|| "current_user".to_owned(), literal),
        );
        let rows = session.query(&sql).await?;
        let named = |own: &str| {
            let names = rows.iter().filter(|row| row.get(0) == Some(own));
            names.filter_map(|row| row.get(1)).map(str::to_owned).collect()
        };
        let role = rows.first().and_then(|row| row.get(2)).unwrap_or_default().to_owned();
        Ok(Restricted { own: named("t"), outboxes: named("f"), role })
    }

    /// Refuses to work if rows of the router's schema are hidden.
    ///
    /// # Errors
    /// Rows are hidden.
    pub fn refuse_own(&self) -> Result<(), Error> {
        if self.own.is_empty() {
            return Ok(());
        }
        let what = self.what(
            &self.own,
            "and without parked events and positions the router would lose or reorder events",
        );
        Err(Error::refused(ErrorCode::NotPrepared, what, self.remedy()))
    }

    /// Whose rows are hidden, and `so`, what follows from that.
    pub fn what(&self, tables: &[String], so: &str) -> String {
        format!(
            "row-level security of {} hides rows from the role {}, {so}",
            tables.join(", "),
            identifier(&self.role)
        )
    }

    /// How the role sees all rows.
    pub fn remedy(&self) -> Remedy {
        Remedy::steps([see_all_rows(&self.role)])
    }
}

/// The step that exempts a role from policies.
pub fn see_all_rows(role: &str) -> Step {
    Step::new("As a superuser, let the role see all rows")
        .sql(format!("ALTER ROLE {} BYPASSRLS", identifier(role)))
}
