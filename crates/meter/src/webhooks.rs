//! Webhooks: endpoints, messages, and one delivery per endpoint and message.
//!
//! Guarantees: (being written). Leaves to others: what messages say.
