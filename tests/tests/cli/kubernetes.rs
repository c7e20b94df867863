//! Manifests of `configs/kubernetes`: what Kustomize renders of each folder.
//!
//! | test | shows |
//! |---|---|
//! | `schemas_accept_all_manifests` | the published schemas of Kubernetes accept every document, and refuse an unknown field |
//! | `names_in_manifests_refer_to_something` | volumes, ConfigMaps and the Service's selector |
//! | `pods_have_only_the_documented_rights` | users, capabilities, file systems and limits of every container |
//! | `wqcap_accepts_configurations_and_arguments` | `wqcap check` with each `wqcap.toml` and the settings of the pods |

use serde_json::Value;
use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, path::PathBuf};
use wqcap_tests::{Dir, Program, binaries, need, oracles::pypi, process::is_root};

/// Folders below `configs/kubernetes`.
const FOLDERS: [&str; 5] = ["capture", "serve", "ship", "fleet", "site"];
/// Number of documents that `site` renders: namespace, ConfigMap, Service, three DaemonSets, CronJob.
const DOCUMENTS_OF_SITE: usize = 7;
/// Package with the published schemas of Kubernetes, and its version.
const SCHEMAS: (&str, &str) = ("kubernetes-validate", "1.37.0");
/// Oldest and newest version of Kubernetes whose schemas are checked.
const VERSIONS: [&str; 2] = ["1.25", "1.37"];
/// User of all processes after their start.
const USER: u64 = 65532;

/// Prints the YAML documents of a file as one JSON array.
const AS_JSON: &str = "
import json, sys, yaml
print(json.dumps([it for it in yaml.safe_load_all(open(sys.argv[1])) if it]))
";

/// Manifests that Kustomize renders, and the means to read and validate them.
struct Manifests {
    dir: Dir,
    packages: PathBuf,
}

impl Manifests {
    /// Renders all folders into files `NAME.yaml`.
    ///
    /// # Errors
    /// Returns a reason to skip if kubectl is not installed, or the schemas cannot be installed.
    fn render() -> Result<Self, String> {
        let found = Program::new("sh").args(["-c", "command -v kubectl"]).run();
        if !found.status.success() {
            return Err("kubectl, which contains Kustomize, is not installed".to_owned());
        }
        let packages = pypi::installed(SCHEMAS.0, "", SCHEMAS.1)?;
        let dir = Dir::new();
        for name in FOLDERS {
            let folder = binaries::root().join("configs/kubernetes").join(name);
            let done = Program::new("kubectl")
                .arg("kustomize")
                .arg(folder)
                .run()
                .expect(0);
            dir.write(&format!("{name}.yaml"), &done.stdout);
        }
        Ok(Self { dir, packages })
    }

    fn python(&self, args: &[&str]) -> Program {
        Program::new("python3")
            .args(args)
            .env("PYTHONPATH", &self.packages)
            .cwd(self.dir.path())
    }

    /// Validates a file in the folder of the manifests against the schemas of one version.
    fn validate(&self, file: &str, version: &str) -> wqcap_tests::Done {
        let options = ["--strict", "--kubernetes-version", version, file];
        self.python(&["-m", "kubernetes_validate"])
            .args(options)
            .run()
    }

    /// Returns the documents that a folder renders.
    fn documents(&self, folder: &str) -> Vec<Value> {
        let file = format!("{folder}.yaml");
        let done = self.python(&["-c", AS_JSON, &file]).run().expect(0);
        serde_json::from_str(&done.stdout).expect("the documents are JSON")
    }

    /// Returns all workloads of the folder `site`: DaemonSets and CronJobs.
    fn workloads(&self) -> Vec<Workload> {
        let documents = self.documents("site").into_iter();
        let workloads = documents.filter_map(|it| {
            let template = match it["kind"].as_str()? {
                "DaemonSet" => &it["spec"]["template"],
                "CronJob" => &it["spec"]["jobTemplate"]["spec"]["template"],
                _ => return None,
            };
            Some(Workload {
                name: it["metadata"]["name"].as_str()?.to_owned(),
                labels: template["metadata"]["labels"].clone(),
                pod: template["spec"].clone(),
            })
        });
        let workloads: Vec<_> = workloads.collect();
        let names: Vec<_> = workloads.iter().map(|it| it.name.as_str()).collect();
        let wanted = ["wqcap-fleet", "wqcap-capture", "wqcap-serve", "wqcap-ship"];
        assert_eq!(names, wanted);
        workloads
    }
}

/// DaemonSet or CronJob, with the template of its pods.
struct Workload {
    name: String,
    /// Labels of the pods.
    labels: Value,
    /// Specification of the pods.
    pod: Value,
}

impl Workload {
    fn is_capture(&self) -> bool {
        self.name == "wqcap-capture"
    }

    fn containers(&self) -> &[Value] {
        list(&self.pod["containers"])
    }

    /// Returns all containers, those that run before the others first.
    fn all_containers(&self) -> impl Iterator<Item = &Value> {
        list(&self.pod["initContainers"])
            .iter()
            .chain(self.containers())
    }
}

/// Returns the elements of an array; an absent value has none.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the texts of an array.
fn texts(value: &Value) -> Vec<&str> {
    list(value).iter().filter_map(Value::as_str).collect()
}

/// Returns the field `key` of each element of an array.
fn fields<'a>(value: &'a Value, key: &str) -> BTreeSet<&'a str> {
    list(value)
        .iter()
        .filter_map(|it| it[key].as_str())
        .collect()
}

#[test]
fn schemas_accept_all_manifests() {
    let manifests = need!(Manifests::render());
    // `site` contains all documents of the other folders.
    for version in VERSIONS {
        let done = manifests.validate("site.yaml", version).expect(0);
        let accepted = [&*done.stdout, &*done.stderr].concat();
        let accepted = accepted.matches(" passed for resource ").count();
        assert_eq!(accepted, DOCUMENTS_OF_SITE, "{done}");
    }
    let of_folders = FOLDERS[..4].iter().map(|it| manifests.documents(it).len());
    assert_eq!(of_folders.sum::<usize>(), DOCUMENTS_OF_SITE);

    let site = fs::read_to_string(manifests.dir.join("site.yaml")).expect("a rendered file");
    let broken = site.replace("hostNetwork:", "hostNetwrok:");
    manifests.dir.write("broken.yaml", broken);
    let refused = manifests.validate("broken.yaml", VERSIONS[1]).expect(1);
    let reason = [&*refused.stdout, &*refused.stderr].concat();
    assert!(reason.contains("hostNetwrok"), "{refused}");
}

#[test]
fn names_in_manifests_refer_to_something() {
    let manifests = need!(Manifests::render());
    let documents = manifests.documents("site");
    let named =
        |kind: &str| -> Vec<&Value> { documents.iter().filter(|it| it["kind"] == kind).collect() };
    let config = named("ConfigMap")[0]["metadata"]["name"].as_str();
    let config = config.expect("a name");
    assert!(config.starts_with("wqcap-"), "{config} has no hash");
    let workloads = manifests.workloads();
    for it in &workloads {
        let name = &it.name;
        let volumes = fields(&it.pod["volumes"], "name");
        for container in it.all_containers() {
            let mounts = fields(&container["volumeMounts"], "name");
            assert!(mounts.is_subset(&volumes), "{name}: {mounts:?}");
        }
        for volume in list(&it.pod["volumes"]) {
            let refers = &volume["configMap"]["name"];
            assert!(refers.is_null() || refers == config, "{name}: {refers}");
            // The patch of `site` replaces the path by the position of the volume.
            let path = &volume["hostPath"]["path"];
            assert!(path.is_null() || path == "/data/wqcap", "{name}: {path}");
        }
        for container in it.all_containers() {
            assert_eq!(container["image"], "registry.example.net/wqcap:0.2.0");
        }
    }
    let service = named("Service")[0];
    let selected: Vec<_> = workloads
        .iter()
        .filter(|it| it.labels == service["spec"]["selector"])
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(selected, ["wqcap-serve"]);
}

#[test]
fn pods_have_only_the_documented_rights() {
    let manifests = need!(Manifests::render());
    for it in manifests.workloads() {
        let (name, pod) = (&it.name, &it.pod);
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        let profile = &pod["securityContext"]["seccompProfile"]["type"];
        assert_eq!(profile, "RuntimeDefault", "{name}");
        let on_network_of_node = pod["hostNetwork"] == true;
        assert_eq!(on_network_of_node, it.is_capture(), "{name}");
        for absent in ["hostPID", "hostIPC"] {
            assert!(pod[absent].is_null(), "{name}: {absent}");
        }
        let user = &pod["securityContext"];
        if !it.is_capture() {
            assert_eq!(user["runAsNonRoot"], true, "{name}");
            assert_eq!(user["runAsUser"], USER, "{name}");
        }
        for container in it.all_containers() {
            let rights = &container["securityContext"];
            let name = format!("{name}: {}", container["name"]);
            assert_eq!(rights["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(rights["readOnlyRootFilesystem"], true, "{name}");
            assert!(rights["privileged"].is_null(), "{name}");
            let capabilities = &rights["capabilities"];
            assert_eq!(texts(&capabilities["drop"]), ["ALL"], "{name}");
            let wanted: &[&str] = match container["name"].as_str() {
                Some("capture") => &["NET_RAW", "SETUID", "SETGID", "SETPCAP"],
                Some("folders") => &["CHOWN", "DAC_OVERRIDE", "FOWNER"],
                _ => &[],
            };
            assert_eq!(texts(&capabilities["add"]), wanted, "{name}");
            let memory = &container["resources"]["limits"]["memory"];
            assert!(memory.is_string(), "{name} has no limit of its memory");
        }
        // Every process but the capture mounts the storage to read, and one folder of it to write.
        let mounts = it.containers().iter();
        let mounts = mounts.flat_map(|it| list(&it["volumeMounts"]));
        let written = mounts
            .filter(|it| it["readOnly"] != true)
            .filter_map(|it| it["mountPath"].as_str());
        let wanted: &[&str] = match name.as_str() {
            "wqcap-capture" => &["/var/lib/wqcap", "/run/wqcap"],
            "wqcap-serve" => &["/var/lib/wqcap/packets/.wqcap-pins"],
            "wqcap-ship" => &["/var/lib/wqcap/ship"],
            _ => &[],
        };
        assert_eq!(written.collect::<Vec<_>>(), wanted, "{name}");
    }
}

#[test]
fn wqcap_accepts_configurations_and_arguments() {
    let manifests = need!(Manifests::render());
    // The user of the pods must be able to write to the folders.
    let dir = Dir::for_all();
    for folder in ["packets", "index", "flows", "ship", "run"] {
        let folder = dir.folder(folder);
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder, all).expect("the mode of a new folder can be set");
    }
    // The arguments of the pods, with an address and a name instead of the node's.
    let mut settings = Vec::new();
    for it in manifests.workloads() {
        for container in it.containers() {
            let args = texts(&container["args"]);
            let [command, config, sets @ ..] = &args[..] else {
                panic!("{}: {args:?}", it.name);
            };
            assert_eq!(*config, "--config=/etc/wqcap/wqcap.toml");
            let help = Program::new(binaries::wqcap()).args([command, "--help"]);
            let _ = help.run().expect(0);
            let filled = sets.iter().map(|it| {
                assert!(it.starts_with("--set="), "{it}");
                let it = it.replace("$(NODE_IP)", "127.0.0.1");
                it.replace("$(POD_IP)", "127.0.0.1")
                    .replace("$(NODE_NAME)", "node7.example.net")
            });
            settings.extend(filled);
        }
    }
    assert_eq!(settings.len(), 3, "{settings:?}");
    for folder in ["capture", "site"] {
        let documents = manifests.documents(folder);
        let config = documents.iter().find(|it| it["kind"] == "ConfigMap");
        let config = config.expect("a ConfigMap")["data"]["wqcap.toml"].as_str();
        let config = config.expect("the key wqcap.toml");
        // Paths and interfaces of this machine. Another user than root cannot become a user.
        let here = dir.path().display().to_string();
        let mut edited = config
            .replace("\"/var/lib/wqcap", &format!("\"{here}"))
            .replace("\"/run/wqcap", &format!("\"{here}/run"))
            .replace("\"mon0\"", "\"lo\"");
        assert!(edited.contains(&format!("user = \"{USER}\"")), "{edited}");
        if !is_root() {
            edited = edited.replace(&format!("\"{USER}\""), "\"\"");
        }
        let file = dir.write(&format!("{folder}.toml"), edited);
        // The arguments of `ship` need the section [ship].
        let of_ship = |it: &&String| it.starts_with("--set=ship.");
        let has_ship = config.contains("[ship]");
        assert_eq!(has_ship, folder == "site");
        let used = settings.iter().filter(|it| has_ship || !of_ship(it));
        let done = Program::new(binaries::wqcap())
            .args(["check", "--config"])
            .arg(file)
            .args(used)
            .run()
            .expect(0);
        for key in ["netdev = \"lo\"", "backend = \"af_packet\""] {
            assert!(done.stdout.contains(key), "{key}: {done}");
        }
    }
}
