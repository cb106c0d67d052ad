// Per-thread switches and records behind dtensor/inspect.h.
#pragma once

#include <functional>
#include <string>

#include "ops/cache/cached_call.h"
#include "ops/dispatch/operator_entry.h"
#include "scope/checked.h"
#include "sharding_prop/decision.h"

namespace dtensor {

bool strict_mode();

// Whether an ImplicitRedistributionScope warns of implicit redistributions or refuses them.
bool is_implicit_redistribution_restricted();

// Reports the implicit redistributions of an operator: a warning or an error, as ImplicitRedistributionScope selects.
void report_implicit_redistributions(const OpEntry& entry, const CachedCall& call);

// Reports implicit redistributions of a call that is not an operator; `text` describes them.
void report_implicit_redistributions(const MeshInfo& mesh, const std::function<std::string()>& text);

// Runs fn and returns the candidates, costs and decisions of its calls.
std::string explain_calls(const std::function<void()>& fn);
// Records the candidates of a call if a current explanation records.
void record_explanation(const OpCall& call);
void record_explanation(const std::string& text);
bool recording_explanations();

// Reports an operator that runs replicated because it has no rule. Under Strict every call throws. Otherwise the mesh's
// first rank warns once per operator, at a cache miss (`fresh`).
void report_replicated(const OpEntry& entry, const CachedCall& call, bool fresh);

}  // namespace dtensor
