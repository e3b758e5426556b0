//! Log lines about failing endpoints.

use std::fmt;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

/// Collects the complaints, each as level and `name=value` of its fields.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().contains("complaints")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(format!("{} ", event.metadata().level()));
        event.record(&mut fields);
        self.0.lock().expect("not poisoned").push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_failing_endpoint_logs_a_line_without_its_address_or_secret() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let world = World::new(quick()).await;
    let url = world.receiver.url("/missing?key=SESAME");
    let (endpoint, secret) = world.endpoint_as(NewEndpoint::new(url)).await;
    let mut deliverer = world.hooks.deliverer("test").expect("a deliverer");
    for id in ["a", "b", "c"] {
        world.publish(id).await;
    }
    deliverer.drain().await.expect("works");
    let logged = lines.0.lock().expect("not poisoned").clone();
    assert_eq!(logged.len(), 1, "one line a minute: {logged:?}");
    let line = &logged[0];
    for part in [
        "WARN ",
        &format!("endpoint=\"{endpoint}\""),
        "status=404",
        "error=\"answered 404\"",
        "attempt=1",
        "next_attempt_s=",
        "webhook delivery failed",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("SESAME") && !line.contains(&secret), "{line}");
}
