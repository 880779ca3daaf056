//! `GET /v1/savings`: what the middleware saved, for one tenant, and on the listener for operators for all tenants.

use axum::Json;
use axum::extract::{RawQuery, State};
use serde::Serialize;

use super::service::Admin;
use super::{Scope, query};
use crate::error::ApiError;
use crate::savings::report::SavingsReport;

#[derive(Debug, Serialize)]
pub struct TenantSavings {
    tenant: String,
    #[serde(flatten)]
    savings: SavingsReport,
}

#[derive(Debug, Serialize)]
pub struct AllSavings {
    tenants: Vec<TenantSavings>,
}

/// `GET /v1/savings`: of the caller's tenant.
pub async fn show(service: Scope, RawQuery(query): RawQuery) -> Result<Json<SavingsReport>, ApiError> {
    let [] = query::parameters(query.as_deref(), [])?;
    Ok(Json(service.savings().report()))
}

/// `GET /v1/savings` on the listener for operators: of all tenants.
pub async fn show_all(State(admin): State<Admin>) -> Json<AllSavings> {
    let tenants = admin.service.all_tenants();
    let savings = tenants.iter().map(|tenant| TenantSavings {
        tenant: tenant.tenant().name().to_owned(),
        savings: tenant.savings().report(),
    });
    Json(AllSavings { tenants: savings.collect() })
}
