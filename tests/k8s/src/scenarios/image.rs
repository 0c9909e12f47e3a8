//! 17: an image with nothing in it but the worker and the probe, on a root that nobody can write to,
//! as a user that the image has never heard of.

use crate::answer::{Report, Stop};
use crate::stage::{Case, PROBE};

use super::life::HEALTHY;

pub(super) fn bare(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let plan = case.lapin(case.broker()?, "")?.patch(
        "spec: {template: {spec: {securityContext: {runAsUser: 4242, runAsGroup: 4242}}}}",
    )?;
    let pod = case.start(&plan)?;
    report.is("the probe's line", HEALTHY, &case.exec(&pod.name, &[PROBE])?.out);
    let explained = case.exec(&pod.name, &[PROBE, "--explain"])?;
    let generation = explained.out.lines().find(|line| line.starts_with("generation "));
    report.is(
        "--explain without a shell",
        true,
        generation.is_some_and(|it| it.contains("same by ")),
    );
    let shell = case.exec(&pod.name, &["/bin/sh", "-c", "true"])?;
    report.is("a shell in the image", false, shell.status == Some(0));
    // The same pod with its marks where no volume is: the root refuses, and the worker works on.
    let refused =
        case.lapin(case.broker()?, "w")?.env("TICKMARK_DIR", "/marks").env("DEMO_QUEUES", "orders");
    let other = case.begin(&refused)?;
    let said =
        case.poll("the worker did not say that it cannot publish", crate::stage::PATIENCE, || {
            let log = case.log(&other.name, false)?;
            Ok(log.lines().find(|line| line.contains("cannot publish")).map(str::to_owned))
        })?;
    let why = said.split("cannot publish: ").nth(1).unwrap_or_default().to_owned();
    let read_only = why.contains("EROFS") || why.to_lowercase().contains("read-only");
    report.add("a write to the root", "refused, read-only", why, read_only);
    let consumed = case.poll("its queue was not consumed", crate::stage::PATIENCE, || {
        let host = case.virtual_host();
        Ok(case.broker()?.consumers(&host, "orders")?.filter(|&count| count > 0))
    })?;
    report.is("and that worker still consumes", 1, consumed);
    Ok(report)
}
