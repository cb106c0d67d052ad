// Replays a schedule along its dependencies, each rank in its order, as far as possible.
#pragma once

#include <functional>
#include <string>

#include "pipeline/schedule/action_index.h"

namespace dtensor::pipeline {

enum class SendMode { buffered, batched, rendezvous };  // as in Schedule::Report

// Calls `visit` for each action after the actions on which it depends. Returns a description of the cycle of waiting
// actions that remains; empty if all ran. Dependencies that are not in the schedule count as done.
std::string replay(const ScheduleIndex& index, SendMode sends, const std::function<void(ActionPosition)>& visit = {});

}  // namespace dtensor::pipeline
