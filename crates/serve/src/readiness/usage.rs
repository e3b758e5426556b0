//! Whether stored usage is what was recorded, as far as the audit has checked.
//!
//! Guarantees: findings of the audit of any process are shown by all of them. Leaves to others: the audit
//! itself ([`logmill_meter::audit`]).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_meter::Meter;

use super::{Cause, Check, Finding};
use crate::error::{Error, Result};

/// Pause between two checks: the audit itself takes hours.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Reports the findings of the usage audit.
#[derive(Debug)]
pub struct UsageCheck(Meter);

impl UsageCheck {
    pub fn new(meter: Meter) -> Arc<Self> {
        Arc::new(Self(meter))
    }
}

#[async_trait]
impl Check for UsageCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        let status = match self.0.audit_status().await.map_err(Error::from) {
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => {
                let why = format!(
                    "the findings of the usage audit cannot be read: {}",
                    logmill_io::error_chain(&error)
                );
                return Ok(vec![Finding::new(Cause::MeterStoreSilent, None, why)]);
            }
            Ok(status) => status,
        };
        if status.damaged_total == 0 {
            return Ok(Vec::new());
        }
        let why = format!("{} stored usage records are damaged", status.damaged_total);
        Ok(vec![Finding::new(Cause::UsageDamaged, None, why)])
    }

    fn silence(&self) -> Finding {
        Finding::new(Cause::MeterStoreSilent, None, "reading the findings of the usage audit")
    }

    fn every(&self) -> Duration {
        LOOK_EVERY
    }
}
