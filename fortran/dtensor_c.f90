! The functions and types of dtensor/c/dtensor.h for Fortran, one interface for each, and what wrappers of them need. The
! module `dtensor` wraps them.
module dtensor_c
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  implicit none
  public

  integer, parameter :: dtensor_ok = 0, dtensor_invalid_argument = 1, dtensor_communication = 2, &
                                dtensor_out_of_memory = 3, dtensor_internal = 4

  ! struct dtensor_host_array.
  type, bind(c) :: c_host_array
    type(c_ptr) :: data = c_null_ptr
    integer(c_int) :: dtype = 0, ndim = 0
    type(c_ptr) :: sizes = c_null_ptr, strides = c_null_ptr
  end type

  interface
    function c_last_error() bind(c, name='dtensor_last_error') result(text)
      import
      type(c_ptr) :: text
    end function
    function c_strlen(text) bind(c, name='strlen') result(length)
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
    integer(c_int) function c_set_timeout(seconds) bind(c, name='dtensor_set_timeout')
      import
      real(c_double), value :: seconds
    end function
    integer(c_int) function c_set_bit_identical(mesh, block) bind(c, name='dtensor_set_bit_identical')
      import
      type(c_ptr), value :: mesh
      integer(c_int), value :: block
    end function
    integer(c_int) function c_mesh_from_mpi(comm, ndim, shape, names, mesh) bind(c, name='dtensor_mesh_from_mpi')
      import
      integer(c_int), value :: comm, ndim
      integer(c_int64_t), intent(in) :: shape(*)
      character(kind=c_char), intent(in) :: names(*)
      type(c_ptr), intent(inout) :: mesh
    end function
    integer(c_int) function c_mesh_of_process(mesh) bind(c, name='dtensor_mesh_of_process')
      import
      type(c_ptr), intent(inout) :: mesh
    end function
    integer(c_int) function c_mesh_on_gpu(mesh, gpu, made) bind(c, name='dtensor_mesh_on_gpu')
      import
      type(c_ptr), value :: mesh
      integer(c_int), value :: gpu
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_mesh_on_device(mesh, device, made) bind(c, name='dtensor_mesh_on_device')
      import
      type(c_ptr), value :: mesh
      character(kind=c_char), intent(in) :: device(*)
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_mesh_size(mesh, n) bind(c, name='dtensor_mesh_size')
      import
      type(c_ptr), value :: mesh
      integer(c_int), intent(inout) :: n
    end function
    integer(c_int) function c_mesh_rank(mesh, n) bind(c, name='dtensor_mesh_rank')
      import
      type(c_ptr), value :: mesh
      integer(c_int), intent(inout) :: n
    end function
    subroutine c_mesh_free(mesh) bind(c, name='dtensor_mesh_free')
      import
      type(c_ptr), value :: mesh
    end subroutine

    integer(c_int) function c_from_host(mesh, local, placements, tensor) bind(c, name='dtensor_tensor_from_host')
      import
      type(c_ptr), value :: mesh
      type(c_host_array), intent(in) :: local
      character(kind=c_char), intent(in) :: placements(*)
      type(c_ptr), intent(inout) :: tensor
    end function
    integer(c_int) function c_increment_version(tensor) bind(c, name='dtensor_tensor_increment_version')
      import
      type(c_ptr), value :: tensor
    end function
    subroutine c_tensor_free(tensor) bind(c, name='dtensor_tensor_free')
      import
      type(c_ptr), value :: tensor
    end subroutine
    integer(c_int) function c_ndim(tensor, ndim) bind(c, name='dtensor_tensor_ndim')
      import
      type(c_ptr), value :: tensor
      integer(c_int), intent(inout) :: ndim
    end function
    integer(c_int) function c_size(tensor, dim, n) bind(c, name='dtensor_tensor_size')
      import
      type(c_ptr), value :: tensor
      integer(c_int), value :: dim
      integer(c_int64_t), intent(inout) :: n
    end function
    integer(c_int) function c_placements(tensor, text) bind(c, name='dtensor_tensor_placements')
      import
      type(c_ptr), value :: tensor
      type(c_ptr), intent(inout) :: text
    end function
    integer(c_int) function c_content_hash(tensor, digits) bind(c, name='dtensor_tensor_content_hash')
      import
      type(c_ptr), value :: tensor
      character(kind=c_char), intent(inout) :: digits(*)
    end function
    integer(c_int) function c_local(tensor, local) bind(c, name='dtensor_tensor_local')
      import
      type(c_ptr), value :: tensor
      type(c_host_array), intent(inout) :: local
    end function
    integer(c_int) function c_redistribute(tensor, placements, made) bind(c, name='dtensor_tensor_redistribute')
      import
      type(c_ptr), value :: tensor
      character(kind=c_char), intent(in) :: placements(*)
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_to_mesh(tensor, mesh, made) bind(c, name='dtensor_tensor_to_mesh')
      import
      type(c_ptr), value :: tensor, mesh
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_copy_full(tensor, array) bind(c, name='dtensor_tensor_copy_full')
      import
      type(c_ptr), value :: tensor
      type(c_host_array), intent(in) :: array
    end function
    integer(c_int) function c_copy(to, from) bind(c, name='dtensor_tensor_copy')
      import
      type(c_ptr), value :: to, from
    end function
    integer(c_int) function c_item(tensor, number) bind(c, name='dtensor_tensor_item')
      import
      type(c_ptr), value :: tensor
      real(c_double), intent(inout) :: number
    end function
    integer(c_int) function c_compute(name, n, operands, made) bind(c, name='dtensor_tensor_compute')
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: n
      type(c_ptr), intent(in) :: operands(*)
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_set_requires_grad(tensor, on) bind(c, name='dtensor_tensor_set_requires_grad')
      import
      type(c_ptr), value :: tensor
      integer(c_int), value :: on
    end function
    integer(c_int) function c_mse_loss(prediction, goal, loss) bind(c, name='dtensor_mse_loss')
      import
      type(c_ptr), value :: prediction, goal
      type(c_ptr), intent(inout) :: loss
    end function
    integer(c_int) function c_l1_loss(prediction, goal, loss) bind(c, name='dtensor_l1_loss')
      import
      type(c_ptr), value :: prediction, goal
      type(c_ptr), intent(inout) :: loss
    end function
    integer(c_int) function c_cross_entropy_loss(prediction, goal, loss) bind(c, name='dtensor_cross_entropy_loss')
      import
      type(c_ptr), value :: prediction, goal
      type(c_ptr), intent(inout) :: loss
    end function
    integer(c_int) function c_backward(tensor, gradient) bind(c, name='dtensor_tensor_backward')
      import
      type(c_ptr), value :: tensor, gradient
    end function
    integer(c_int) function c_grad(tensor, gradient) bind(c, name='dtensor_tensor_grad')
      import
      type(c_ptr), value :: tensor
      type(c_ptr), intent(inout) :: gradient
    end function
    integer(c_int) function c_autograd_grad(output, gradient, n, tensors, made, create_graph) &
        bind(c, name='dtensor_autograd_grad')
      import
      type(c_ptr), value :: output, gradient
      integer(c_int), value :: n, create_graph
      type(c_ptr), intent(in) :: tensors(*)
      type(c_ptr), intent(inout) :: made(*)
    end function
    integer(c_int) function c_tensor_zero_grad(tensor) bind(c, name='dtensor_tensor_zero_grad')
      import
      type(c_ptr), value :: tensor
    end function

    integer(c_int) function c_module_create(mesh, name, n, sizes, activation, dtype, seed, made) &
        bind(c, name='dtensor_module_create')
      import
      type(c_ptr), value :: mesh
      character(kind=c_char), intent(in) :: name(*), activation(*)
      integer(c_int), value :: n, dtype
      integer(c_int64_t), intent(in) :: sizes(*)
      integer(c_int64_t), value :: seed
      type(c_ptr), intent(inout) :: made
    end function
    subroutine c_module_free(layer) bind(c, name='dtensor_module_free')
      import
      type(c_ptr), value :: layer
    end subroutine
    integer(c_int) function c_forward(layer, x, made) bind(c, name='dtensor_module_forward')
      import
      type(c_ptr), value :: layer, x
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_forward_no_grad(layer, x, made) bind(c, name='dtensor_module_forward_no_grad')
      import
      type(c_ptr), value :: layer, x
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_forward_list(layer, inputs, x, results, made, record) &
        bind(c, name='dtensor_module_forward_list')
      import
      type(c_ptr), value :: layer
      integer(c_int), value :: inputs, results, record
      type(c_ptr), intent(in) :: x(*)
      type(c_ptr), intent(inout) :: made(*)
    end function
    integer(c_int) function c_train(layer, on) bind(c, name='dtensor_module_train')
      import
      type(c_ptr), value :: layer
      integer(c_int), value :: on
    end function
    integer(c_int) function c_clip_grad_norm(layer, max_norm, norm) bind(c, name='dtensor_module_clip_grad_norm')
      import
      type(c_ptr), value :: layer
      real(c_double), value :: max_norm
      real(c_double), intent(inout) :: norm
    end function
    integer(c_int) function c_parameter_count(layer, n) bind(c, name='dtensor_module_parameter_count')
      import
      type(c_ptr), value :: layer
      integer(c_int), intent(inout) :: n
    end function
    integer(c_int) function c_parameter_name(layer, i, text) bind(c, name='dtensor_module_parameter_name')
      import
      type(c_ptr), value :: layer
      integer(c_int), value :: i
      type(c_ptr), intent(inout) :: text
    end function
    integer(c_int) function c_parameter(layer, i, made) bind(c, name='dtensor_module_parameter')
      import
      type(c_ptr), value :: layer
      integer(c_int), value :: i
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_fully_shard(layer) bind(c, name='dtensor_module_fully_shard')
      import
      type(c_ptr), value :: layer
    end function

    integer(c_int) function c_adamw(layer, lr, beta1, beta2, eps, weight_decay, made) &
        bind(c, name='dtensor_optimizer_adamw')
      import
      type(c_ptr), value :: layer
      real(c_double), value :: lr, beta1, beta2, eps, weight_decay
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_sgd(layer, lr, momentum, weight_decay, made) bind(c, name='dtensor_optimizer_sgd')
      import
      type(c_ptr), value :: layer
      real(c_double), value :: lr, momentum, weight_decay
      type(c_ptr), intent(inout) :: made
    end function
    subroutine c_optimizer_free(optimizer) bind(c, name='dtensor_optimizer_free')
      import
      type(c_ptr), value :: optimizer
    end subroutine
    integer(c_int) function c_step(optimizer) bind(c, name='dtensor_optimizer_step')
      import
      type(c_ptr), value :: optimizer
    end function
    integer(c_int) function c_optimizer_zero_grad(optimizer) bind(c, name='dtensor_optimizer_zero_grad')
      import
      type(c_ptr), value :: optimizer
    end function
    integer(c_int) function c_set_lr(optimizer, lr) bind(c, name='dtensor_optimizer_set_lr')
      import
      type(c_ptr), value :: optimizer
      real(c_double), value :: lr
    end function
    integer(c_int) function c_set_option(optimizer, name, number) bind(c, name='dtensor_optimizer_set_option')
      import
      type(c_ptr), value :: optimizer
      character(kind=c_char), intent(in) :: name(*)
      real(c_double), value :: number
    end function
    integer(c_int) function c_save(path, layer, optimizer, step) bind(c, name='dtensor_checkpoint_save')
      import
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), value :: layer, optimizer
      integer(c_int64_t), value :: step
    end function
    integer(c_int) function c_load(path, layer, optimizer, step) bind(c, name='dtensor_checkpoint_load')
      import
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), value :: layer, optimizer
      integer(c_int64_t), intent(inout) :: step
    end function
    ! Graphs.
    integer(c_int) function c_graph_create(mesh, owned, counts, rows, edges, from, to, made) &
        bind(c, name='dtensor_graph_create')
      import
      type(c_ptr), value :: mesh
      integer(c_int64_t), value :: owned, edges
      integer(c_int64_t), intent(in) :: counts(*), rows(*), from(*), to(*)
      type(c_ptr), intent(inout) :: made
    end function
    subroutine c_graph_free(graph) bind(c, name='dtensor_graph_free')
      import
      type(c_ptr), value :: graph
    end subroutine
    integer(c_int) function c_graph_ghosts(graph, ghosts) bind(c, name='dtensor_graph_ghosts')
      import
      type(c_ptr), value :: graph
      integer(c_int64_t), intent(inout) :: ghosts
    end function
  end interface

  abstract interface
    integer(c_int) function c_rows(graph, rows, made) bind(c)
      import
      type(c_ptr), value :: graph, rows
      type(c_ptr), intent(inout) :: made
    end function
  end interface
  procedure(c_rows), bind(c, name='dtensor_graph_exchange') :: c_graph_exchange
  procedure(c_rows), bind(c, name='dtensor_graph_reduce') :: c_graph_reduce
  procedure(c_rows), bind(c, name='dtensor_graph_gather_source') :: c_graph_gather_source
  procedure(c_rows), bind(c, name='dtensor_graph_gather_target') :: c_graph_gather_target
  procedure(c_rows), bind(c, name='dtensor_graph_scatter') :: c_graph_scatter

contains

  ! Errors and texts.

  function text_of(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i, length
    length = 0
    if (c_associated(pointer)) length = int(c_strlen(pointer))
    allocate (character(len=length) :: text)
    if (length == 0) return
    call c_f_pointer(pointer, letters, [length])
    do i = 1, length
      text(i:i) = letters(i)
    end do
  end function

  function dtensor_last_error() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_last_error())
  end function

  subroutine finish(code, status)
    integer(c_int), intent(in) :: code
    integer, intent(out), optional :: status
    if (present(status)) then
      status = code
    else if (code /= dtensor_ok) then
      write (error_unit, '(a)') dtensor_last_error()
      error stop 1
    end if
  end subroutine

  function c_text(text)
    character(len=*), intent(in) :: text
    character(len=len_trim(text) + 1, kind=c_char) :: c_text
    c_text = trim(text) // c_null_char
  end function
end module
