//! Bad successors: the incumbent serves on, the successor is proven gone, and the answer says so.

use tickmark_activator::Options;
use tickmark_activator::swap::{Outcome, Why};

use crate::basics::Case;
use crate::client::ask;
use crate::site::{Site, alive, build, host, swap, within};
use std::time::Duration;

pub(crate) const ALL: &[Case] = &[
    ("a_successor_that_dies_at_once_leaves_the_incumbent_serving", || {
        Box::pin(bad("die-at-once", Why::Died, "exit status 3"))
    }),
    ("a_successor_that_dies_after_a_second_leaves_the_incumbent_serving", || {
        Box::pin(bad("die-after-1000-never-healthy", Why::Died, "exit status 4"))
    }),
    ("a_successor_that_never_gets_healthy_leaves_the_incumbent_serving", || {
        Box::pin(bad("never-healthy", Why::NeverReady, "has not started yet"))
    }),
    ("a_successor_with_another_launchs_marks_leaves_the_incumbent_serving", || {
        Box::pin(bad("another-launch", Why::NeverReady, "previous container"))
    }),
    ("a_successor_with_another_containers_marks_leaves_the_incumbent_serving", || {
        Box::pin(bad("another-container", Why::NeverReady, "previous container"))
    }),
    ("a_successor_that_cannot_run_leaves_the_incumbent_serving", || Box::pin(cannot_run())),
    ("a_first_build_that_fails_leaves_nothing_and_is_not_tried_again", || Box::pin(first_fails())),
];

async fn bad(fault: &str, why: Why, said: &str) {
    let site = Site::new();
    site.stage("good", "");
    site.stage("bad", fault);
    let activator = site.open().await;
    assert_eq!(swap(&activator, "good").await.outcome.exit(), 0);
    let before = alive(&site);
    let options = Options { deadline: Some(Duration::from_millis(2500)), ..Options::default() };
    let answer = activator.swap(&host(), build("bad"), options).await.unwrap();
    let Outcome::Unchanged { serves, why: found } = answer.outcome else {
        panic!("{answer:?}");
    };
    assert_eq!((serves.get(), found), (1, why), "{answer:?}");
    assert_eq!(answer.outcome.exit(), 1);
    assert_eq!(answer.build, Some(build("good")));
    let error = answer.error.expect("it says why").to_string();
    assert!(error.contains(said), "{error}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "good");
    assert_eq!(alive(&site), before, "the successor is gone, the incumbent is the same");
    let status = activator.status(&host()).await.unwrap();
    assert!(status.failed.contains_key(&build("bad")), "it is remembered");
    activator.stop(&host()).await.unwrap();
}

async fn cannot_run() {
    let site = Site::new();
    site.stage("good", "");
    site.stage_script("bad", "#!/no/such/interpreter\n");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "good").await.outcome.exit(), 0);
    let answer = swap(&activator, "bad").await;
    assert!(matches!(answer.outcome, Outcome::Unchanged { why: Why::Failed, .. }), "{answer:?}");
    assert!(answer.error.unwrap().to_string().contains("interpreter"));
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "good");
    activator.stop(&host()).await.unwrap();
}

async fn first_fails() {
    let mut site = Site::new();
    site.host = "restart = { min = \"10ms\", max = \"50ms\" }\n".to_owned();
    site.stage("bad", "die-at-once");
    let activator = site.open().await;
    let answer = activator.swap(&host(), build("bad"), within(5)).await.unwrap();
    assert_eq!(answer.outcome.exit(), 5, "{answer:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let status = activator.status(&host()).await.unwrap();
    assert_eq!(status.state, "asleep");
    assert!(status.failed.contains_key(&build("bad")));
    assert!(alive(&site).is_empty());
}
