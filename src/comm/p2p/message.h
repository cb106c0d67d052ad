// Point-to-point messages between processes.
#pragma once

#include "comm/p2p/collective.h"

namespace dtensor::p2p {

Work start_message(const std::shared_ptr<ProcessGroup>& members, const CollectiveCall& call, const at::Tensor& tensor);

}  // namespace dtensor::p2p
