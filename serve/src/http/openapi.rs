//! Description of the HTTP interface, served at `/openapi.json`.

use super::routes;
use crate::{
    error::ErrorBody,
    flow_rows::FlowsAnswer,
    sensor::{PinsAnswer, StatusAnswer},
    timeline::Timeline,
};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Document,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "wqcap serve",
        description = "Packets, flow records and state of a sensor. Times in parameters are RFC 3339 with an offset, seconds since 1970, a duration before now (-10m), or now. Times in answers are decimal digits in strings: nanoseconds since 1970."
    ),
    paths(
        routes::packets_get, routes::packets_post, routes::query, routes::flows, routes::timeline,
        routes::status, routes::pins, routes::add_pin, routes::add_mark, routes::log_in,
        routes::log_out, routes::healthz, routes::metrics
    ),
    components(schemas(ErrorBody, FlowsAnswer, PinsAnswer, StatusAnswer, Timeline)),
    modifiers(&Callers)
)]
struct HttpInterface;

/// Modifier of the OpenAPI document that adds how callers identify themselves.
struct Callers;

impl Modify for Callers {
    fn modify(&self, document: &mut Document) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

/// Returns the OpenAPI description of the HTTP interface as JSON.
pub fn document() -> String {
    HttpInterface::openapi().to_json().unwrap_or_default()
}
