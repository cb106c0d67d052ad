// A step in which a stage throws: its rank runs the rest of its list without computing, and says why in the place of
// each message. So do those who receive that, and every rank comes to its end.
#include "dtensor/comm.h"
#include "pipeline/step.h"

namespace dtensor::pipeline {

// Of what is sent or received; of another action, nothing.
Step::Route Step::route_of(const Action& action) const {
  const bool receives = action.kind == ActionKind::recv_forward || action.kind == ActionKind::recv_backward;
  const bool forward = action.kind == ActionKind::recv_forward || action.kind == ActionKind::send_forward;
  if (!is_communication(action.kind)) return {-1, -1};
  const int other = action.stage + (forward != receives ? 1 : -1);
  return {context_.schedule.rank_of(other), channel(receives ? action.stage : other, action.microbatch, forward)};
}

// Where ranks are gone, or wait for each other, there is nobody to be told.
void Step::attempt(const Action& action) {
  try {
    run(action);
    if (!trains_) forget(action);
  } catch (const MessageRefused& refused) {
    failure_ = refused.reason;
  } catch (const CommError&) {
    throw;
  } catch (const c10::Error& e) {
    fail(action, e.what_without_backtrace());
  } catch (const std::exception& e) {
    fail(action, e.what());
  }
}

// Within a handler.
void Step::fail(const Action& action, const std::string& why) {
  if (action.kind == ActionKind::recv_forward || action.kind == ActionKind::recv_backward) throw;
  thrown_ = std::current_exception();
  failure_ = c10::str("pipeline: in ", to_string(action), ": ", why);
  skip(action);  // it may have been to send
}

void Step::skip(const Action& action) {
  const auto [peer, channel] = route_of(action);
  switch (action.kind) {
    case ActionKind::send_forward:
    case ActionKind::send_backward:
      return messages_.send_failure(failure_, peer, channel);
    case ActionKind::recv_forward:
    case ActionKind::recv_backward:
      try {
        messages_.receive(peer, channel);
      } catch (const MessageRefused&) {  // for the same reason, or another
      }
      return;
    case ActionKind::reshard:
      return run(action);
    default:
      return;
  }
}

}  // namespace dtensor::pipeline
