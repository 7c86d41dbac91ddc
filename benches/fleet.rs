//! Cost of a fleet that shares a request cache, by the number of workers.
//!
//! The workers run the exchange of the package, one at a time, by a simulated clock: each call of the store takes the
//! time of a bucket of S3, and a worker waits between exchanges as `Sharing` does. They share one store, or one of each
//! tenant, and a router sends a tenant always to one worker, or to any. `FLEETS=10,100` chooses the numbers of workers.

#![expect(clippy::print_stdout, reason = "the figures")]

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs, thread};

use specds_core::Result;
use specds_core::memory::{FoundHead, Memory, MemoryOptions, ObjectStore};

const INTERVAL: Duration = Duration::from_secs(60);
const MINUTES: u32 = 10;
/// Tokens of the text that a worker has in each interval.
const NUM_TOKENS: u32 = 32;
/// More workers in one store would take hours.
const MOST_IN_ONE: usize = 300;
/// The shortest time from an exchange to the next, over the time that the former took.
const GAP: u32 = 20;
/// Times of the calls of a bucket in the region of its workers.
const READ: Duration = Duration::from_millis(30);
const WRITE: Duration = Duration::from_millis(60);
const BYTES_PER_SECOND: f64 = 50e6;

fn main() {
    let chosen = env::var("FLEETS").unwrap_or_else(|_| "10,100,1000".to_owned());
    let is_test = env::args().any(|argument| argument == "--test");
    println!(
        "| stores | tenants of a worker | router | workers | seconds from an exchange to the next | attempts of an exchange | calls a minute | \
         kB read a minute | kB written a minute | CPU ms of an exchange | earlier texts of the tenant |"
    );
    println!("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let any = |way| FleetWay { is_routed: false, ..way };
    let (one, of_tenants) = (FleetWay::ONE, FleetWay { has_tenants: true, ..FleetWay::ONE });
    let with_more = FleetWay { num_tenants: 9, ..of_tenants };
    for way in [one, any(one), of_tenants, with_more, any(of_tenants)] {
        for number in if is_test { "3" } else { &chosen }.split(',') {
            let number = number.parse().expect("a number of workers");
            if way.has_tenants || number <= MOST_IN_ONE {
                println!("{}", simulate(way, number));
            }
        }
    }
}

/// The stores and the router of a fleet.
#[derive(Clone, Copy)]
struct FleetWay {
    /// True if each tenant has a store.
    has_tenants: bool,
    /// True if a tenant's requests go to one worker.
    is_routed: bool,
    /// Tenants of the fleet, over the number of workers.
    num_tenants: usize,
}

impl FleetWay {
    const ONE: Self = Self { has_tenants: false, is_routed: true, num_tenants: 3 };

    /// Returns the tenant of a worker's text.
    fn tenant(self, worker: usize, text: u32, num_workers: usize) -> usize {
        let text = text as usize;
        if self.is_routed {
            return worker * self.num_tenants + text % self.num_tenants;
        }
        let mixed = (worker * MINUTES as usize + text).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 33) % (self.num_tenants * num_workers)
    }
}

/// A clock whose workers run one at a time, each when its time has come.
struct Clock {
    turn: Mutex<Turn>,
    workers: Vec<Condvar>,
}

#[derive(Default)]
struct Turn {
    now: Duration,
    waiting: BinaryHeap<Reverse<(Duration, usize)>>,
    running: Option<usize>,
}

impl Clock {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next worker run.
    fn next(&self, turn: &mut Turn) {
        turn.running = None;
        if let Some(Reverse((time, worker))) = turn.waiting.pop() {
            (turn.now, turn.running) = (time, Some(worker));
            self.workers[worker].notify_one();
        }
    }

    fn wait(&self, worker: usize, time: Duration) -> Duration {
        let mut turn = self.turn();
        let until = turn.now + time;
        turn.waiting.push(Reverse((until, worker)));
        self.next(&mut turn);
        self.run(worker, turn)
    }

    fn run(&self, worker: usize, mut turn: MutexGuard<'_, Turn>) -> Duration {
        while turn.running != Some(worker) {
            turn = self.workers[worker].wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        turn.now
    }
}

#[derive(Default)]
struct SimulatedStore {
    head: Option<(Vec<u8>, u64)>,
    objects: BTreeMap<String, Vec<u8>>,
}

#[derive(Default)]
struct SimulatedBucket {
    stores: BTreeMap<String, SimulatedStore>,
    /// Number of texts that each tenant ever had.
    num_texts: BTreeMap<usize, usize>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    exchanges: u64,
    attempts: u64,
    calls: u64,
    bytes_read: u64,
    bytes_written: u64,
    /// Earlier texts of a text's tenant, and those that the worker had.
    earlier_texts: u64,
    earlier_texts_here: u64,
}

/// A store in the bucket, as a worker reaches it.
struct BucketStore<'a>(&'a Client, String);

struct Client {
    worker: usize,
    clock: Arc<Clock>,
    bucket: Arc<Mutex<SimulatedBucket>>,
    counts: RefCell<Counts>,
}

impl Client {
    fn bucket(&self) -> MutexGuard<'_, SimulatedBucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<R>(
        &self,
        store: &str,
        time: Duration,
        effect: impl FnOnce(&mut SimulatedStore, &mut Counts) -> R,
    ) -> R {
        self.clock.wait(self.worker, time / 2);
        let mut counts = self.counts.borrow_mut();
        counts.calls += 1;
        let before = counts.bytes_read + counts.bytes_written;
        let mut bucket = self.bucket();
        let result = effect(bucket.stores.entry(store.to_owned()).or_default(), &mut counts);
        drop(bucket);
        let num_bytes = counts.bytes_read + counts.bytes_written - before;
        let transfer = Duration::from_secs_f64(num_bytes as f64 / BYTES_PER_SECOND);
        self.clock.wait(self.worker, time / 2 + transfer);
        result
    }
}

impl BucketStore<'_> {
    fn call<R>(
        &self,
        time: Duration,
        effect: impl FnOnce(&mut SimulatedStore, &mut Counts) -> R,
    ) -> R {
        self.0.call(&self.1, time, effect)
    }
}

impl ObjectStore for BucketStore<'_> {
    fn below(&self, name: &str) -> Result<Box<dyn ObjectStore + '_>> {
        Ok(Box::new(Self(self.0, name.to_owned())))
    }

    fn stores(&self) -> Result<Vec<String>> {
        Ok(self.0.bucket().stores.keys().cloned().collect())
    }

    fn head(&self, known: Option<&str>) -> Result<FoundHead> {
        Ok(self.call(READ, |bucket, counts| match &bucket.head {
            None => FoundHead::Missing,
            Some((_, version)) if known == Some(&version.to_string()) => FoundHead::Unchanged,
            Some((head, version)) => {
                counts.bytes_read += head.len() as u64;
                FoundHead::Changed(head.clone(), version.to_string())
            }
        }))
    }

    fn replace_head(&self, head: &[u8], before: Option<&str>) -> Result<Option<String>> {
        Ok(self.call(WRITE, |bucket, counts| {
            counts.attempts += 1;
            counts.bytes_written += head.len() as u64;
            let found = bucket.head.as_ref().map(|(_, version)| version.to_string());
            let version = bucket.head.as_ref().map_or(0, |(_, version)| version + 1);
            (found.as_deref() == before).then(|| {
                bucket.head = Some((head.to_vec(), version));
                version.to_string()
            })
        }))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.call(READ, |bucket, counts| {
            let found = bucket.objects.get(name).cloned();
            counts.bytes_read += found.as_ref().map_or(0, Vec::len) as u64;
            found
        }))
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<()> {
        self.call(WRITE, |bucket, counts| {
            counts.bytes_written += content.len() as u64;
            bucket.objects.insert(name.to_owned(), content.to_vec());
        });
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.call(WRITE, |bucket, _| drop(bucket.objects.remove(name)));
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.call(READ, |bucket, _| bucket.objects.keys().cloned().collect()))
    }

    fn latency(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn wait(&self, time: Duration) {
        self.0.clock.wait(self.0.worker, time);
    }
}

/// Runs a worker until the time is over.
fn work(client: &Client, way: FleetWay, num_workers: usize) -> Result<Counts> {
    let options = MemoryOptions { max_bytes: 1 << 26, ..MemoryOptions::new(1 << 16) };
    let memory = Memory::new(options)?;
    let mut now = client.clock.run(client.worker, client.clock.turn());
    let (mut num_texts, end) = (0, INTERVAL * MINUTES);
    while now < end {
        while INTERVAL * num_texts < now {
            let worker = u32::try_from(client.worker).expect("few workers");
            let seed = worker * MINUTES + num_texts;
            let tokens = (0..NUM_TOKENS).map(|at| (seed * 40_503 + at * at * 31) % (1 << 16));
            let number = way.tenant(client.worker, num_texts, num_workers);
            let tenant = format!("tenant {number}");
            let mut counts = client.counts.borrow_mut();
            let mut bucket = client.bucket();
            let earlier = bucket.num_texts.entry(number).or_default();
            counts.earlier_texts += *earlier as u64;
            counts.earlier_texts_here += memory.texts(&tenant).len() as u64;
            *earlier += 1;
            drop((bucket, counts));
            memory.insert(&tenant, &tokens.collect::<Vec<_>>())?;
            num_texts += 1;
        }
        let (store, name) = (BucketStore(client, String::new()), Path::new("bucket"));
        if way.has_tenants {
            memory.exchange_tenants(&store, name, None)?;
        } else {
            memory.exchange(&store, name, &mut |_| Ok(None))?;
        }
        client.counts.borrow_mut().exchanges += 1;
        let ended = client.clock.wait(client.worker, Duration::ZERO);
        now = client.clock.wait(client.worker, INTERVAL.max(ended.saturating_sub(now) * GAP));
    }
    let mut turn = client.clock.turn();
    client.clock.next(&mut turn);
    Ok(*client.counts.borrow())
}

/// Returns the processor time of this process, in milliseconds.
fn cpu_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    10 * (ticks(12).unwrap_or(0) + ticks(13).unwrap_or(0))
}

/// Runs workers that begin in one interval, and returns the row of their figures, for a worker and a minute.
fn simulate(way: FleetWay, num_workers: usize) -> String {
    let start = |worker| (INTERVAL.mul_f64(worker as f64 / num_workers as f64), worker);
    let waiting = (0..num_workers).map(|worker| Reverse(start(worker))).collect();
    let clock = Arc::new(Clock {
        turn: Mutex::new(Turn { waiting, ..Turn::default() }),
        workers: (0..num_workers).map(|_| Condvar::new()).collect(),
    });
    let (bucket, begun) = (Arc::<Mutex<SimulatedBucket>>::default(), cpu_ms());
    let spawn = |worker| {
        let (clock, bucket) = (Arc::clone(&clock), Arc::clone(&bucket));
        let run = move || {
            let client = Client { worker, clock, bucket, counts: RefCell::default() };
            work(&client, way, num_workers).expect("exchanges")
        };
        let thread = thread::Builder::new().stack_size(1 << 20).spawn(run);
        thread.expect("a thread")
    };
    let threads: Vec<_> = (0..num_workers).map(spawn).collect();
    clock.next(&mut clock.turn());
    let counts: Vec<_> = threads.into_iter().map(|it| it.join().expect("a worker")).collect();
    let total = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>() as f64;
    let exchanges = total(|it| it.exchanges);
    let worker_minutes = num_workers as f64 * f64::from(MINUTES);
    format!(
        "| {} | {} | {} | {num_workers} | {:.0} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} % |",
        if way.has_tenants { "one of each tenant" } else { "one" },
        way.num_tenants,
        if way.is_routed { "by tenant" } else { "any worker" },
        60.0 * worker_minutes / exchanges,
        total(|it| it.attempts) / exchanges,
        total(|it| it.calls) / worker_minutes,
        total(|it| it.bytes_read) / worker_minutes / 1e3,
        total(|it| it.bytes_written) / worker_minutes / 1e3,
        (cpu_ms() - begun) as f64 / exchanges,
        100.0 * total(|it| it.earlier_texts_here) / total(|it| it.earlier_texts),
    )
}
