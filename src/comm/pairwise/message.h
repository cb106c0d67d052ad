// Point-to-point messages between processes.
#pragma once

#include "comm/pairwise/collective.h"

namespace dtensor::pairwise {

Work start_message(const std::shared_ptr<Members>& members, const CollectiveCall& call, const at::Tensor& tensor);

}  // namespace dtensor::pairwise
