//! The cases: what is done to the broker or the worker, and what must be seen of it, when.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tickmark::protocol::Phase;

use crate::broker::Broker;
use crate::network::{self, Let, Proxy, Silence};
use crate::worker::{LATE, MAX_AGE, Pace, REAL, Site, TICK, Worker, throughout, until};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(),
    /// What it needs besides the broker, and does not find.
    pub(crate) missing: fn() -> Option<String>,
}

const fn case(name: &'static str, run: fn()) -> Case {
    Case { name, run, missing: || None }
}

/// The longest first: they all run at once, and wait.
pub(crate) const ALL: &[Case] = &[
    case("sigterm_with_a_job_that_never_ends", sigterm_with_a_job_that_never_ends),
    Case { missing: network::missing, ..case("soak", crate::soak::soak) },
    case("the_broker_killed_ten_times", the_broker_killed_ten_times),
    case("sigterm_with_a_long_job", sigterm_with_a_long_job),
    Case { missing: network::missing, ..case("packets_dropped", packets_dropped) },
    case("the_broker_down_for_seven_max_ages", the_broker_down_for_seven_max_ages),
    case("many_processes", crate::slots::many_processes),
    Case { missing: crate::image::missing, ..case("the_image", crate::image::the_image) },
    case("the_connection_comes_back_without_its_channels", without_its_channels),
    case("an_ack_timeout", an_ack_timeout),
    case("a_wrong_password", a_wrong_password),
    case("the_oracle_can_disagree", crate::soak::the_oracle_can_disagree),
    case("the_switches", the_switches),
    case("the_alert_names_what_the_broker_exports", crate::metrics::named_as_exported),
    case("a_queue_deleted", a_queue_deleted),
    case(
        "a_swap_takes_consumers_from_n_to_2n_to_n",
        crate::swap::a_swap_takes_consumers_from_n_to_2n_to_n,
    ),
    case("both_queues_consumed", both_queues_consumed),
    case("a_connection_that_may_give_up", a_connection_that_may_give_up),
    case("prefetch_without_polling", prefetch_without_polling),
];

/// A worker that became healthy.
pub(crate) fn started(site: &Site, broker: &Broker, variables: &[(&str, &str)]) -> Worker {
    let worker = site.start(&broker.uri(), variables);
    until(Duration::from_secs(30), "healthy at first", || site.healthy());
    worker
}

pub(crate) fn fresh(site: &Site, worker: &Worker) {
    let (healthy, line) = site.verdict();
    assert!(healthy, "{line}\n{}", worker.story());
    // Not `max_age`: a missed tick must show.
    let age = site.mark_age();
    assert!(age < site.pace.tick + LATE, "a mark {age:?} old\n{}", worker.story());
}

/// Its one ERROR is that this queue is not consumed.
fn says_stopped(worker: &Worker, queue: &str) -> bool {
    worker.errors() == [format!("ERROR became unhealthy (expected 2 consumers): {queue} stopped")]
}

fn both_queues_consumed() {
    let broker = Broker::shared();
    let site = Site::new();
    let worker = started(&site, &broker, &[]);
    assert_eq!(site.verdict().1, "1 process(es) healthy");
    let mark = site.mark().unwrap();
    assert_eq!((mark.consumers_subscribed, mark.consumers_expected), (2, 2));
    assert_eq!(mark.phase, Phase::Running);
    broker.publish(&site.queues[0], 100);
    broker.publish(&site.queues[1], 100);
    until(Duration::from_secs(10), "both queues are worked off", || {
        broker.queue(&site.queues[0]) == Some((1, 0))
            && broker.queue(&site.queues[1]) == Some((1, 0))
    });
    throughout(2 * MAX_AGE, || fresh(&site, &worker));
    assert_eq!(worker.errors(), [""; 0]);
}

fn a_queue_deleted() {
    let broker = Broker::shared();
    let site = Site::new();
    let worker = started(&site, &broker, &[]);
    broker.delete_queue(&site.queues[1]);
    until(TICK + LATE, "an ERROR in the next tick", || says_stopped(&worker, &site.queues[1]));
    until(MAX_AGE + LATE, "stale", || !site.healthy());
    assert!(site.verdict().1.starts_with("worker-0 stale "), "{}", site.verdict().1);
    // The connection and the other queue are as they were: that is what must not hide it.
    assert_eq!(broker.queue(&site.queues[0]), Some((1, 0)));
}

fn the_broker_killed_ten_times() {
    let broker = Broker::start();
    let site = Site::new();
    let mut worker = started(&site, &broker, &[]);
    for round in 1..=10 {
        broker.kill();
        until(TICK + LATE, "recovering in the next tick", || {
            fresh(&site, &worker);
            site.mark().unwrap().phase == Phase::Recovering
        });
        broker.start_again();
        until(Duration::from_secs(20), "consuming again", || {
            fresh(&site, &worker);
            site.mark().unwrap().phase == Phase::Running
        });
        broker.publish(&site.queues[0], 10);
        broker.publish(&site.queues[1], 10);
        until(Duration::from_secs(10), "the queues are worked off", || {
            fresh(&site, &worker);
            broker.queue(&site.queues[0]) == Some((1, 0))
                && broker.queue(&site.queues[1]) == Some((1, 0))
        });
        assert_eq!(worker.ended(), None, "round {round}");
    }
    // Nor does a shutdown wait for a broker that is away.
    broker.kill();
    worker.signal(Signal::TERM);
    until(Duration::from_secs(5), "the worker's end", || worker.ended().is_some());
    assert!(worker.wait().success());
    assert_eq!(worker.errors(), [""; 0]);
}

fn the_broker_down_for_seven_max_ages() {
    let broker = Broker::start();
    let site = Site::new();
    let worker = started(&site, &broker, &[]);
    broker.kill();
    throughout(7 * MAX_AGE, || fresh(&site, &worker));
    assert_eq!(site.mark().unwrap().phase, Phase::Recovering);
    broker.start_again();
    until(Duration::from_secs(20), "consuming again", || {
        fresh(&site, &worker);
        site.mark().unwrap().phase == Phase::Running
    });
    assert_eq!(worker.errors(), [""; 0]);
}

fn a_wrong_password() {
    let broker = Broker::shared();
    let site = Site::new();
    // Six ticks of a second are a window.
    let window = 6 * TICK;
    let uri = broker.uri_for("guest", "wrong");
    let mut lines = Vec::new();
    let mut starts = 0u32;
    let begun = Instant::now();
    while lines.iter().filter(|line: &&String| line.starts_with("ERROR")).count() < 2 {
        assert!(begun.elapsed() < 4 * window, "{lines:#?}");
        let mut worker = site.start(&uri, &[]);
        starts += 1;
        let status = worker.wait();
        assert!(!status.success());
        assert!(!site.healthy());
        // The reader may be behind the process's end.
        until(TICK, "the worker says why", || worker.story().contains("lapin worker failed"));
        lines.extend(worker.liveness());
    }
    let took = begun.elapsed();
    assert!(took > 2 * window - TICK, "two windows in {took:?}");
    assert_eq!(lines.len(), 4, "of {starts} starts: {lines:#?}");
    assert!(lines[0].starts_with("INFO started: "), "{lines:#?}");
    assert_eq!(lines[1], "INFO waiting for 2 consumers");
    for line in &lines[2..] {
        assert!(line.starts_with("ERROR not healthy "), "{line}");
        assert!(line.ends_with(" starts, expected 2 consumers"), "{line}");
    }
    let counted = lines[3].split(" over ").nth(1).and_then(|rest| rest.split(' ').next());
    let counted: u32 = counted.unwrap().parse().unwrap();
    // A process that ends before its monitor's first tick is not counted.
    assert!(counted <= starts && counted > starts * 9 / 10, "{starts}: {lines:#?}");
    assert!(starts > 20, "only {starts} starts");
}

fn an_ack_timeout() {
    // The broker looks for jobs that are too old once a channel tick.
    let broker = Broker::start_with("consumer_timeout = 3000", "{channel_tick_interval, 1000}", "");
    let site = Site::new();
    let worker = started(&site, &broker, &[("DEMO_JOB", "3600000")]);
    broker.publish(&site.queues[0], 1);
    let took = until(Duration::from_secs(10), "the closed channel", || {
        says_stopped(&worker, &site.queues[0])
    });
    assert!(took > Duration::from_secs(2), "after {took:?}");
    assert!(worker.story().contains("consumer lost: 406: "), "{}", worker.story());
    until(MAX_AGE + LATE, "stale", || !site.healthy());
}

/// As in a pod: every time is the real one.
fn sigterm_with_a_long_job() {
    const JOB: Duration = Duration::from_secs(60);
    let broker = Broker::shared();
    let site = Site::at(REAL);
    let variables = [("DEMO_JOB", "60000"), ("TICKMARK_SHUTDOWN_GRACE", "90")];
    let mut worker = started(&site, &broker, &variables);
    broker.publish(&site.queues[0], 1);
    until(Duration::from_secs(5), "taken", || broker.queue(&site.queues[0]) == Some((1, 0)));
    let begun = Instant::now();
    worker.signal(Signal::TERM);
    until(LATE, "draining at once", || {
        matches!(site.mark().unwrap().phase, Phase::Draining { .. })
    });
    assert_eq!(site.mark().unwrap().jobs_in_flight, 1);
    // It takes no more, and holds back nothing: another worker is free for it.
    let unconsumed = |queue: &str| broker.queue(queue) == Some((0, 0));
    until(Duration::from_secs(5), "unsubscribed", || site.queues.iter().all(|q| unconsumed(q)));
    broker.publish(&site.queues[0], 1);
    assert_eq!(broker.queue(&site.queues[0]), Some((0, 1)));
    while worker.ended().is_none() {
        fresh(&site, &worker);
        assert!(begun.elapsed() < JOB + Duration::from_secs(5), "{}", worker.story());
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = begun.elapsed();
    assert!(took > JOB - Duration::from_secs(5), "ended after {took:?}");
    assert!(worker.wait().success());
    assert!(site.healthy(), "green to the end");
    assert_eq!(worker.errors(), [""; 0]);
    assert_eq!(broker.queue(&site.queues[0]), Some((0, 1)), "the one was acknowledged");
}

/// As in a pod: every time is the real one.
fn sigterm_with_a_job_that_never_ends() {
    const GRACE: Duration = Duration::from_secs(90);
    let Pace { tick, max_age } = REAL;
    let broker = Broker::shared();
    let site = Site::at(REAL);
    let mut worker = started(&site, &broker, &[("TICKMARK_SHUTDOWN_GRACE", "90")]);
    worker.signal(Signal::HUP);
    until(TICK, "endless", || worker.story().contains("endless-jobs"));
    broker.publish(&site.queues[0], 1);
    until(Duration::from_secs(5), "taken", || broker.queue(&site.queues[0]) == Some((1, 0)));
    let begun = Instant::now();
    worker.signal(Signal::TERM);
    until(LATE, "draining at once", || {
        matches!(site.mark().unwrap().phase, Phase::Draining { .. })
    });
    throughout(GRACE - tick, || fresh(&site, &worker));
    assert_eq!(worker.errors(), [""; 0]);
    let said = "ERROR shutdown grace of 90s is over: the mark is no longer refreshed";
    until(2 * tick + LATE, "the ERROR", || worker.errors() == [said]);
    let late = begun.elapsed();
    assert!(late > GRACE - LATE && late < GRACE + tick + LATE, "the ERROR after {late:?}");
    until(max_age + LATE, "stale", || !site.healthy());
    let red = begun.elapsed();
    assert!(red > GRACE + max_age - tick - LATE && red < GRACE + max_age + LATE, "{red:?}");
    assert!(site.verdict().1.starts_with("worker-0 stale "), "{}", site.verdict().1);
    assert_eq!(worker.ended(), None);
    assert_eq!(worker.errors(), [said]);
}

fn the_switches() {
    let broker = Broker::shared();
    for threads in ["1", "2"] {
        let site = Site::new();
        let worker = started(&site, &broker, &[("DEMO_THREADS", threads)]);
        worker.signal(Signal::USR2);
        let said = "ERROR became unhealthy (expected 2 consumers): runtime tokio blocked";
        until(2 * TICK + LATE, "a blocked runtime in two ticks", || worker.errors() == [said]);
        until(MAX_AGE + LATE, "stale", || !site.healthy());
    }

    let site = Site::new();
    let worker = started(&site, &broker, &[]);
    worker.signal(Signal::USR1);
    until(TICK + LATE, "a cancelled consumer in a tick", || says_stopped(&worker, &site.queues[0]));
    drop(worker);

    let site = Site::new();
    let variables = [("DEMO_PREFETCH", "1"), ("DEMO_DEADLINE", "2000")];
    let worker = started(&site, &broker, &variables);
    worker.signal(Signal::HUP);
    until(TICK, "endless", || worker.story().contains("endless-jobs"));
    broker.publish(&site.queues[0], 1);
    // One of two places: the other can still be worked in.
    throughout(2 * TICK + Duration::from_secs(2), || fresh(&site, &worker));
    broker.publish(&site.queues[1], 1);
    let said = "ERROR became unhealthy (expected 2 consumers): all 2 jobs older than 2s";
    until(Duration::from_secs(2) + TICK + LATE, "stuck", || worker.errors() == [said]);

    let site = Site::new();
    let mut worker = started(&site, &broker, &[]);
    worker.signal(Signal::QUIT);
    until(TICK, "refused", || worker.story().contains("refuse-drain"));
    worker.signal(Signal::TERM);
    throughout(2 * TICK, || assert_eq!(worker.ended(), None));
}

/// Nobody is told that the connection is gone: the heartbeat finds out.
fn packets_dropped() {
    const HEARTBEAT: Duration = Duration::from_secs(4);
    let broker = Broker::shared();
    let site = Site::new();
    let uri = format!("amqp://127.0.0.1:{}/%2f?heartbeat=4", broker.cut_port());
    let worker = site.start(&uri, &[]);
    until(Duration::from_secs(30), "healthy at first", || site.healthy());
    let silence = Silence::of(broker.cut_port());
    let noticed = until(3 * HEARTBEAT + TICK + LATE, "recovering", || {
        fresh(&site, &worker);
        site.mark().unwrap().phase == Phase::Recovering
    });
    assert!(noticed > HEARTBEAT / 2, "noticed after {noticed:?}");
    throughout(2 * MAX_AGE, || fresh(&site, &worker));
    drop(silence);
    // The next attempt, or the next time that TCP tries the one under way.
    until(Duration::from_secs(60), "consuming again", || {
        fresh(&site, &worker);
        site.mark().unwrap().phase == Phase::Running
    });
    // The broker counts the lost connection's until its own heartbeats have found out.
    until(3 * HEARTBEAT, "one consumer", || broker.queue(&site.queues[0]) == Some((1, 0)));
    assert_eq!(worker.errors(), [""; 0]);
}

fn without_its_channels() {
    let broker = Broker::shared();
    let proxy = Proxy::to(broker.port());
    let site = Site::new();
    let uri = format!("amqp://guest:guest@127.0.0.1:{}", proxy.port());
    let worker = site.start(&uri, &[("DEMO_RECOVERY_GRACE", "6000")]);
    until(Duration::from_secs(30), "healthy at first", || site.healthy());
    proxy.cut_and_then(Let::ConnectionsOnly);
    until(TICK + LATE, "recovering", || site.mark().unwrap().phase == Phase::Recovering);
    until(Duration::from_secs(10), "connected again", || proxy.connected_again());
    throughout(Duration::from_secs(2), || fresh(&site, &worker));
    assert_eq!(worker.errors(), [""; 0]);
    until(Duration::from_secs(6) + LATE, "the grace's end", || worker.errors().len() == 1);
    let said = &worker.errors()[0];
    for queue in &site.queues {
        assert!(said.contains(&format!("{queue} recovering ")), "{said}");
    }
    until(MAX_AGE + LATE, "stale", || !site.healthy());
    // A whole connection again, and the exemption begins anew.
    proxy.cut_and_then(Let::Everything);
    until(Duration::from_secs(30), "healthy again", || site.healthy());
}

fn liveness(site: &Site, recovery_grace: Option<Duration>) -> tickmark::Liveness {
    let mut builder = tickmark::Liveness::builder().consumers(1).tick(TICK);
    if let Some(grace) = recovery_grace {
        builder = builder.recovery_grace(grace);
    }
    let max_age = MAX_AGE.as_secs().to_string();
    let settings = [("TICKMARK_DIR", site.dir()), ("TICKMARK_MAX_AGE", &max_age)];
    builder.environment(settings).start().unwrap()
}

fn a_connection_that_may_give_up() {
    let broker = Broker::shared();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connection = runtime.block_on(async {
        let properties = lapin::ConnectionProperties::default().enable_auto_recover();
        lapin::Connection::connect(&broker.uri(), properties).await.unwrap()
    });
    let connection = tickmark::lapin::Connection::from(connection);
    let site = Site::new();
    assert!(connection.watched_by(&liveness(&site, None)).unwrap_err().is_grace());
    assert!(connection.watched_by(&liveness(&site, Some(MAX_AGE))).is_ok());
    let properties = tickmark::lapin::properties();
    let connection = runtime.block_on(properties.connect(&broker.uri())).unwrap();
    assert!(connection.watched_by(&liveness(&site, None)).is_ok());
}

/// An application that does not poll: the broker sends no more than it may, and the end is seen.
fn prefetch_without_polling() {
    let broker = Broker::shared();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let site = Site::new();
    let liveness = liveness(&site, None);
    let (_connection, mut orders) = runtime.block_on(async {
        let connection = tickmark::lapin::properties().connect(&broker.uri()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let (options, table) = (Default::default(), Default::default());
        channel.queue_declare("orders".into(), options, table).await.unwrap();
        channel.basic_qos(3, Default::default()).await.unwrap();
        let consumer = connection.watched_by(&liveness).unwrap();
        let (options, table) = (Default::default(), Default::default());
        let orders = consumer.consume(&channel, "orders", "", options, table).await.unwrap();
        (connection, orders)
    });
    broker.publish("orders", 10);
    until(2 * TICK + LATE, "healthy", || site.healthy());
    until(TICK, "three taken", || broker.queue("orders") == Some((1, 7)));
    throughout(TICK, || assert_eq!(broker.queue("orders"), Some((1, 7))));
    broker.delete_queue("orders");
    until(TICK + MAX_AGE + LATE, "stale", || !site.healthy());
    runtime.block_on(async {
        for _ in 0..3 {
            let delivery = orders.next().await.unwrap().unwrap();
            assert!(delivery.acker.usable());
        }
        assert!(orders.next().await.is_none());
    });
}
