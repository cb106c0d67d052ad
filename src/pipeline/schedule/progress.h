// Follows a schedule through its dependencies, each rank its actions in order, as far as they go.
#pragma once

#include <functional>
#include <string>

#include "pipeline/schedule/action_index.h"

namespace dtensor::pipeline {

enum class SendMode { buffered, batched, rendezvous };  // as ScheduleReport tells them apart

// Calls `visit` for each action, after all that it needs. Returns the cycle of waiting actions that was left, in words;
// empty where all ran. Actions that are needed and nowhere are taken as done.
std::string replay(const ScheduleIndex& index, SendMode sends, const std::function<void(ActionPosition)>& visit = {});

}  // namespace dtensor::pipeline
