//! The load generator: each connection sends the next question when the previous one is answered.
//!
//! One thread and no client library, because it shares the cores with the server; its own CPU time is reported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use logmill_pipeline::Chain;

use super::chain::QuestionClass;
use crate::cpu;
use crate::http::Connection;

/// How long each load runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// Result of a load.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub seconds: f64,
    pub latencies_us: Vec<u32>,
    pub bytes: u64,
    pub server_cpu_s: f64,
    pub client_cpu_s: f64,
}

/// Sends these requests to a server, in a cycle, over this number of connections. Blocks the thread.
pub fn run(
    address: &str,
    pid: u32,
    requests: Vec<Vec<u8>>,
    connections: usize,
    length: Duration,
) -> anyhow::Result<Sample> {
    anyhow::ensure!(!requests.is_empty(), "no requests");
    let requests = Arc::new(requests);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let begin = Instant::now() + WARM_UP;
        let end = begin + length;
        let asking = (0..connections).map(|number| {
            let requests = Arc::clone(&requests);
            let address = address.to_owned();
            async move {
                let task = ask(address, requests, number, begin, end);
                tokio::spawn(task).await?
            }
        });
        let usage = async {
            tokio::time::sleep_until(begin.into()).await;
            let before = (cpu::of_process(pid)?, cpu::of_client()?);
            tokio::time::sleep_until(end.into()).await;
            anyhow::Ok((cpu::of_process(pid)? - before.0, cpu::of_client()? - before.1))
        };
        let (asked, usage) = tokio::try_join!(try_join_all(asking), usage)?;
        let mut sample = Sample {
            seconds: length.as_secs_f64(),
            server_cpu_s: usage.0,
            client_cpu_s: usage.1,
            ..Sample::default()
        };
        for (latencies, bytes) in asked {
            sample.latencies_us.extend(latencies);
            sample.bytes += bytes;
        }
        Ok(sample)
    })
}

async fn ask(
    address: String,
    requests: Arc<Vec<Vec<u8>>>,
    number: usize,
    begin: Instant,
    end: Instant,
) -> anyhow::Result<(Vec<u32>, u64)> {
    let mut connection = Connection::open(&address).await?;
    let (mut latencies, mut bytes) = (Vec::new(), 0);
    let mut next = number * 7;
    loop {
        let start = Instant::now();
        if start >= end {
            return Ok((latencies, bytes));
        }
        connection.send(&requests[next % requests.len()]).await?;
        let length = connection.skip().await?;
        let done = Instant::now();
        // Answers within the measured time count, regardless of when they were requested.
        if (begin..end).contains(&done) {
            let latency = done.duration_since(start).as_micros();
            latencies.push(u32::try_from(latency).unwrap_or(u32::MAX));
            bytes += length as u64;
        }
        next += 1;
    }
}

/// Runs the same questions without HTTP and JSON, one after the other.
pub async fn direct(
    chain: &Chain,
    class: &QuestionClass,
    length: Duration,
) -> anyhow::Result<Sample> {
    let begin = Instant::now() + WARM_UP;
    let end = begin + length;
    let (mut sample, mut next) = (Sample::default(), 0);
    let mut cpu_s = None;
    loop {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let question = &class.questions[next % class.questions.len()];
        let page = chain.view().await?.logs(&question.filter).await?;
        anyhow::ensure!(
            page.logs.len() as u64 == question.results,
            "the answer in process differs"
        );
        if start >= begin {
            if cpu_s.is_none() {
                cpu_s = Some(cpu::of_client()?);
            }
            let elapsed = start.elapsed().as_micros();
            sample.latencies_us.push(u32::try_from(elapsed).unwrap_or(u32::MAX));
        }
        next += 1;
    }
    sample.seconds = length.as_secs_f64();
    sample.server_cpu_s = cpu::of_client()? - cpu_s.unwrap_or_default();
    Ok(sample)
}
