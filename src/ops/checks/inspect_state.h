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

// Whether ImplicitRedistributionScope warns of moves that were not asked for, or refuses them.
bool is_implicit_redistribution_restricted();

// An operator whose operands move between ranks unasked: a warning or an error, as ImplicitRedistributionScope says.
void report_implicit_redistributions(const OpEntry& entry, const CachedCall& call);

// The same for a call that is no operator's; `text` says what moves.
void report_implicit_redistributions(const MeshInfo& mesh, const std::function<std::string()>& text);

// Runs fn and returns the candidates, prices and choices of its calls.
std::string explain_calls(const std::function<void()>& fn);
// Notes the candidates of this call; nothing unless a record is being made.
void record_explanation(const OpCall& call);
void record_explanation(const std::string& text);
bool recording_explanations();

// An operator that runs replicated for want of a rule: an error under Strict, at every call, and where the call was not
// known (`fresh`) one warning per operator by the mesh's first rank.
void report_replicated(const OpEntry& entry, const CachedCall& call, bool fresh);

}  // namespace dtensor
