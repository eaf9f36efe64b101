//! Tokens that the API server takes no more (401): who has one says so, and goes on with the next one of its file.

use kube::api::DeleteParams;
use serde_json::json;
use tensorlane_sidecar::directory::Directory;

use crate::directory::{counted, follows, prepare, publish};
use crate::objects::{api, create, until};
use crate::paused::leads;
use crate::running::{pod, start_as_configured, token};
use crate::server::{Server, free_port};

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn a_sidecar_whose_token_is_refused_keeps_its_peers_and_goes_on_with_the_next_one() {
    let server = Server::start().await;
    let admin = server.admin();
    prepare(&admin).await;
    publish(&admin, "a", 'a').await;
    publish(&admin, "b", 'b').await;
    // A token ends with its pod, as it does with its time.
    let mut own = pod("own", &json!({}));
    own["spec"]["serviceAccountName"] = json!("trainer");
    let made = serde_json::to_value(create(&admin, &own, false).await.unwrap()).unwrap();
    let bound = token(&admin, "ml", "trainer", Some(&made)).await;
    let [kubeconfig, file] = server.kubeconfig_of_file(&bound, "directory.kubeconfig");
    let (directory, metrics) = counted(&kubeconfig).await;
    let tables = directory.watch();
    follows(&tables, &["a", "b"]).await;

    api(&admin, &own).delete("own", &DeleteParams::default().grace_period(0)).await.unwrap();
    // A watch that is open lasts; what is asked anew is refused, once the API server has forgotten that the token was good.
    until("a list is refused", || async {
        directory.refresh();
        (metrics.directory.failed_reads.get() > 0).then_some(())
    })
    .await;
    publish(&admin, "c", 'c').await;
    let refused = metrics.directory.failed_reads.get();
    until("it is refused again", || async {
        (metrics.directory.failed_reads.get() > refused + 1).then_some(())
    })
    .await;
    assert_eq!(tables.borrow().len(), 2, "what is known stays");
    std::fs::write(&file, token(&admin, "ml", "trainer", None).await).unwrap();
    follows(&tables, &["a", "b", "c"]).await;
}

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn an_operator_whose_token_is_refused_says_so_and_leads_with_the_next_one() {
    let mut server = Server::start().await;
    let admin = server.admin();
    let (own, webhook) = crate::running::prepare(&admin).await;
    let [_, file] = server.kubeconfig_of_file("none-of-this-server", "kubeconfig");
    let probes = free_port();
    start_as_configured(&mut server, "operator", (webhook, probes), &[]);
    until("the operator says that it is refused", || async {
        server.log("operator.log").contains("code: 401").then_some(())
    })
    .await;
    assert_eq!(leads(probes), Some(false));
    std::fs::write(&file, own).unwrap();
    until("it leads", || async { leads(probes).filter(|leads| *leads) }).await;
}
