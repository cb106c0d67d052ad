// Follows a schedule through its dependencies, each rank its actions in order, as far as they go.
#pragma once

#include <functional>
#include <string>

#include "pipeline/schedule/index.h"

namespace dtensor::pipeline {

enum class Sends { buffered, batched, rendezvous };  // as ScheduleReport tells them apart

// Calls `visit` for each action, after all that it needs. Returns the cycle of waiting actions that was left, in words;
// empty where all ran. Actions that are needed and nowhere are taken as done.
std::string follow(const ScheduleIndex& index, Sends sends, const std::function<void(Place)>& visit = {});

}  // namespace dtensor::pipeline
