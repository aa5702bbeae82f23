//! Pages that are read ahead by a task of their own.

use pg_logical::QueryError;
use pg_logical::session::{Row, Session};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::page::RowQuery;
use super::reader::{Extent, Found, RowReader};
use crate::error::{Error, Peer};

/// How many pages are read ahead.
const AHEAD: usize = 2;

/// The next rows, or why there are none; `None` is the end.
pub type Page = Result<Option<Vec<Found>>, Error>;

/// The pages of a reader. Reading ends when this is dropped.
#[derive(Debug)]
pub struct Pages {
    pages: mpsc::Receiver<Page>,
    /// `None`: a thread, which ends when it cannot send a page.
    _task: Option<AbortOnDropHandle<()>>,
}

/// What is made of the row of a query.
pub type Judge = Box<dyn Fn(&Row) -> Result<(), Error> + Send + Sync>;

/// What is asked after the last page.
pub struct AtEnd {
    /// The query.
    pub sql: String,
    /// Judges its only row.
    pub judge: Judge,
}

impl Pages {
    /// Starts to read this part of a table. `error` adds what to do about a refusal.
    pub fn start(
        session: Session,
        (query, extent): (RowQuery, Extent),
        at_end: Option<AtEnd>,
        error: fn(QueryError) -> Error,
    ) -> Self {
        let (sender, pages) = mpsc::channel(AHEAD);
        let read = async move {
            if let Err(failed) = read(session, query, extent, at_end, &sender, error).await {
                // nobody listens any more if the source has ended
                let _ = sender.send(Err(failed)).await;
            }
        };
        Pages { pages, _task: Some(AbortOnDropHandle::new(tokio::spawn(read))) }
    }

    /// Starts to read on a thread of its own, with a function that gives pages until the end.
    pub fn from_thread(mut next: impl FnMut() -> Page + Send + 'static) -> Self {
        let (sender, pages) = mpsc::channel(AHEAD);
        tokio::task::spawn_blocking(move || {
            loop {
                let page = next();
                let last = !matches!(page, Ok(Some(_)));
                if sender.blocking_send(page).is_err() || last {
                    break;
                }
            }
        });
        Pages { pages, _task: None }
    }

    /// The next page. Not to be called after the end or an error. Cancel-safe.
    pub async fn next(&mut self) -> Page {
        self.pages
            .recv()
            .await
            .unwrap_or_else(|| Err(Error::transient(Peer::Postgres, "the session that reads rows has ended")))
    }
}

/// Reads until the end, or until nobody wants more.
async fn read(
    mut session: Session,
    query: RowQuery,
    extent: Extent,
    at_end: Option<AtEnd>,
    pages: &mpsc::Sender<Page>,
    error: fn(QueryError) -> Error,
) -> Result<(), Error> {
    let mut reader = RowReader::begin(&mut session, query, extent).await.map_err(error)?;
    loop {
        let page = reader.next_page(&mut session).await.map_err(error)?;
        let last = page.is_none();
        if let (true, Some(AtEnd { sql, judge })) = (last, &at_end) {
            session.query(sql).await.map_err(error)?.first().map_or(Ok(()), judge)?;
        }
        if pages.send(Ok(page)).await.is_err() || last {
            session.close().await;
            return Ok(());
        }
    }
}
