//! Metering on both engines, with faults, crashes and many processes.

mod webhooks;
