//! Checks payloads against the contracts of their event types.

use std::sync::Arc;

use super::unroutable::Unroutable;
use crate::config::Config;
use crate::config::contracts::OnViolation;
use crate::contracts::{Contracts, Violation};
use crate::outbox::{Field, OutboxEvent};

/// The contracts, if there are any, and the violation of the last payload.
#[derive(Default)]
pub(super) struct ContractCheck {
    contracts: Option<Arc<Contracts>>,
    rejects: bool,
    violation: Option<Violation>,
}

impl ContractCheck {
    pub(super) fn new(config: &Config, contracts: Option<Arc<Contracts>>) -> Self {
        let settings = config.contracts.as_ref();
        let rejects = settings.is_some_and(|settings| settings.on_violation == OnViolation::Reject);
        ContractCheck { contracts, rejects, violation: None }
    }

    /// The violation of an event that is sent although its payload violates the contract.
    pub(super) fn check(
        &mut self,
        event: &OutboxEvent<'_>,
        payload: Option<&[u8]>,
    ) -> Result<Option<&Violation>, Unroutable> {
        let Some(contracts) = &self.contracts else { return Ok(None) };
        let types = (event.field(Field::AggregateType), event.field(Field::EventType));
        self.violation = contracts.violation(types.0, types.1, payload);
        match self.violation.take_if(|_| self.rejects) {
            Some(violation) => Err(Unroutable::Contract(violation)),
            None => Ok(self.violation.as_ref()),
        }
    }
}
