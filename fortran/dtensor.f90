! dtensor for Fortran 2008: meshes, tensors over arrays of the program, layers, gradients, optimizers and checkpoints.
! dtensor/c/dtensor.h describes each call.
!
!   call dtensor_mesh_from_mpi(comm, [ranks], mesh)                       ! comm: integer, or comm%mpi_val of mpi_f08
!   call dtensor_from_host(mesh, dtensor_view(field), '[S(0)]', x)        ! field(:, :) is not copied
!   call dtensor_forward(layer, x, y)
!
! Every procedure has an optional last argument `status`, which is dtensor_ok on success. Without it an error stops the
! program with the text of dtensor_last_error(). A tensor has the dimensions of the array, in the order of Fortran.
! Placements count them from 0: '[S(0)]' splits the first one. Arrays need the attribute target, and must not be freed
! while a tensor refers to them. A procedure that returns a handle does not free the object that the variable held.
module dtensor
  use, intrinsic :: iso_c_binding
  use dtensor_arrays
  use dtensor_c
  implicit none
  private

  public :: dtensor_array, dtensor_view, dtensor_max_ndim
  public :: dtensor_float32, dtensor_float64, dtensor_int8, dtensor_int16, dtensor_int32, dtensor_int64
  public :: dtensor_ok, dtensor_invalid_argument, dtensor_communication, dtensor_out_of_memory, dtensor_internal
  ! Handles. Copies refer to the same object; free each object once.
  type, public :: dtensor_mesh
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: dtensor_tensor
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: dtensor_module
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: dtensor_optimizer
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: dtensor_graph
    type(c_ptr) :: handle = c_null_ptr
  end type

  interface dtensor_mesh_from_mpi  ! a communicator of 4 or 8 bytes, whatever the default integer is
    module procedure mesh_from_mpi_int32, mesh_from_mpi_int64
  end interface
  interface dtensor_free  ! frees the object and clears the handle
    module procedure free_mesh, free_tensor, free_module, free_optimizer, free_graph
  end interface
  interface dtensor_forward  ! of one input and result, or of lists for modules of TorchScript
    module procedure forward_one, forward_list
  end interface
  interface dtensor_zero_grad  ! of a tensor, or of all parameters of an optimizer
    module procedure zero_grad_tensor, zero_grad_optimizer
  end interface

  public :: dtensor_last_error, dtensor_set_timeout, dtensor_set_bit_identical, dtensor_content_hash
  public :: dtensor_mesh_from_mpi, dtensor_mesh_of_process
  public :: dtensor_mesh_on_gpu, dtensor_mesh_on_device, dtensor_mesh_size, dtensor_mesh_rank
  public :: dtensor_from_host, dtensor_increment_version, dtensor_free, dtensor_sizes, dtensor_placements
  public :: dtensor_local, dtensor_redistribute, dtensor_to_mesh, dtensor_copy_full, dtensor_copy, dtensor_item, dtensor_compute
  public :: dtensor_set_requires_grad, dtensor_mse_loss, dtensor_l1_loss, dtensor_cross_entropy_loss, dtensor_backward
  public :: dtensor_autograd_grad, dtensor_grad, dtensor_zero_grad
  public :: dtensor_module_create, dtensor_forward, dtensor_forward_no_grad, dtensor_parameter_count
  public :: dtensor_parameter_name, dtensor_parameter, dtensor_fully_shard, dtensor_train, dtensor_clip_grad_norm
  public :: dtensor_optimizer_adamw, dtensor_optimizer_sgd, dtensor_step, dtensor_set_lr, dtensor_set_option
  public :: dtensor_checkpoint_save, dtensor_checkpoint_load
  public :: dtensor_graph_create, dtensor_graph_ghosts, dtensor_graph_exchange, dtensor_graph_reduce
  public :: dtensor_graph_gather_source, dtensor_graph_gather_target, dtensor_graph_scatter

contains

  ! Meshes.

  ! Waits of meshes that are created later; the default is DTENSOR_TIMEOUT of the environment, or 300 seconds.
  subroutine dtensor_set_timeout(seconds, status)
    real(c_double), intent(in) :: seconds
    integer, intent(out), optional :: status
    call finish(c_set_timeout(seconds), status)
  end subroutine

  ! The same bits on every mesh, for calls of this thread. `block`: indices of a block of contracted dimensions, 64 by
  ! default; 0: no more.
  subroutine dtensor_set_bit_identical(mesh, block, status)
    type(dtensor_mesh), intent(in) :: mesh
    integer, intent(in), optional :: block
    integer, intent(out), optional :: status
    integer(c_int) :: number
    number = 64
    if (present(block)) number = int(block, c_int)
    call finish(c_set_bit_identical(mesh%handle, number), status)
  end subroutine

  subroutine mesh_from_mpi_int32(comm, shape, mesh, names, status)
    integer(c_int32_t), intent(in) :: comm
    integer, intent(in) :: shape(:)
    type(dtensor_mesh), intent(inout) :: mesh
    character(len=*), intent(in), optional :: names  ! 'dp,tp'
    integer, intent(out), optional :: status
    character(len=:), allocatable :: list
    list = ''
    if (present(names)) list = names
    call finish(c_mesh_from_mpi(comm, int(size(shape), c_int), int(shape, c_int64_t), c_text(list), mesh%handle), status)
  end subroutine

  subroutine mesh_from_mpi_int64(comm, shape, mesh, names, status)
    integer(c_int64_t), intent(in) :: comm
    integer, intent(in) :: shape(:)
    type(dtensor_mesh), intent(inout) :: mesh
    character(len=*), intent(in), optional :: names
    integer, intent(out), optional :: status
    call mesh_from_mpi_int32(int(comm, c_int32_t), shape, mesh, names, status)
  end subroutine

  subroutine dtensor_mesh_of_process(mesh, status)
    type(dtensor_mesh), intent(inout) :: mesh
    integer, intent(out), optional :: status
    call finish(c_mesh_of_process(mesh%handle), status)
  end subroutine

  ! `gpu`: number of this rank's GPU; by default its number among the ranks of its host.
  subroutine dtensor_mesh_on_gpu(mesh, result, gpu, status)
    type(dtensor_mesh), intent(in) :: mesh
    type(dtensor_mesh), intent(inout) :: result
    integer, intent(in), optional :: gpu
    integer, intent(out), optional :: status
    integer(c_int) :: number
    number = -1
    if (present(gpu)) number = int(gpu, c_int)
    call finish(c_mesh_on_gpu(mesh%handle, number, result%handle), status)
  end subroutine

  ! `device`: 'xpu', 'xpu:1', 'mps' or another device of LibTorch.
  subroutine dtensor_mesh_on_device(mesh, device, result, status)
    type(dtensor_mesh), intent(in) :: mesh
    character(len=*), intent(in) :: device
    type(dtensor_mesh), intent(inout) :: result
    integer, intent(out), optional :: status
    call finish(c_mesh_on_device(mesh%handle, c_text(device), result%handle), status)
  end subroutine

  subroutine dtensor_mesh_size(mesh, ranks, status)
    type(dtensor_mesh), intent(in) :: mesh
    integer, intent(inout) :: ranks
    integer, intent(out), optional :: status
    integer(c_int) :: number, code
    code = c_mesh_size(mesh%handle, number)
    if (code == dtensor_ok) ranks = number
    call finish(code, status)
  end subroutine

  subroutine dtensor_mesh_rank(mesh, rank, status)
    type(dtensor_mesh), intent(in) :: mesh
    integer, intent(inout) :: rank  ! in [0, ranks)
    integer, intent(out), optional :: status
    integer(c_int) :: number, code
    code = c_mesh_rank(mesh%handle, number)
    if (code == dtensor_ok) rank = number
    call finish(code, status)
  end subroutine

  subroutine free_mesh(mesh)
    type(dtensor_mesh), intent(inout) :: mesh
    call c_mesh_free(mesh%handle)
    mesh%handle = c_null_ptr
  end subroutine

  ! Tensors.

  ! The C description of an array, whose sizes and strides it refers to.
  function described(array) result(host)
    type(dtensor_array), intent(in), target :: array
    type(c_host_array) :: host
    host = c_host_array(array%address, int(array%dtype, c_int), int(array%ndim, c_int), c_loc(array%sizes), &
                        c_loc(array%strides))
  end function

  subroutine dtensor_from_host(mesh, array, placements, tensor, status)
    type(dtensor_mesh), intent(in) :: mesh
    type(dtensor_array), intent(in), target :: array
    character(len=*), intent(in) :: placements
    type(dtensor_tensor), intent(inout) :: tensor
    integer, intent(out), optional :: status
    call finish(c_from_host(mesh%handle, described(array), c_text(placements), tensor%handle), status)
  end subroutine

  subroutine dtensor_increment_version(tensor, status)
    type(dtensor_tensor), intent(in) :: tensor
    integer, intent(out), optional :: status
    call finish(c_increment_version(tensor%handle), status)
  end subroutine

  subroutine free_tensor(tensor)
    type(dtensor_tensor), intent(inout) :: tensor
    call c_tensor_free(tensor%handle)
    tensor%handle = c_null_ptr
  end subroutine

  ! Global sizes.
  subroutine dtensor_sizes(tensor, sizes, status)
    type(dtensor_tensor), intent(in) :: tensor
    integer(c_int64_t), allocatable, intent(out) :: sizes(:)
    integer, intent(out), optional :: status
    integer(c_int) :: code, ndim, dim
    ndim = 0
    code = c_ndim(tensor%handle, ndim)
    allocate (sizes(ndim))
    do dim = 1, ndim
      if (code == dtensor_ok) code = c_size(tensor%handle, dim - 1_c_int, sizes(dim))
    end do
    call finish(code, status)
  end subroutine

  subroutine dtensor_placements(tensor, placements, status)
    type(dtensor_tensor), intent(in) :: tensor
    character(len=:), allocatable, intent(inout) :: placements
    integer, intent(out), optional :: status
    type(c_ptr) :: text
    integer(c_int) :: code
    code = c_placements(tensor%handle, text)
    if (code == dtensor_ok) placements = text_of(text)
    call finish(code, status)
  end subroutine

  ! The SHA-256 of all elements in the order of C.
  subroutine dtensor_content_hash(tensor, digits, status)
    type(dtensor_tensor), intent(in) :: tensor
    character(len=:), allocatable, intent(inout) :: digits
    integer, intent(out), optional :: status
    character(kind=c_char) :: text(65)
    integer(c_int) :: code
    code = c_content_hash(tensor%handle, text)
    if (code == dtensor_ok) digits = transfer(text(:64), repeat(' ', 64))
    call finish(code, status)
  end subroutine

  ! This rank's part, of at most dtensor_max_ndim dimensions, without a copy; c_f_pointer makes an array of its address.
  subroutine dtensor_local(tensor, local, status)
    type(dtensor_tensor), intent(in) :: tensor
    type(dtensor_array), intent(inout) :: local
    integer, intent(out), optional :: status
    type(c_host_array) :: host
    integer(c_int64_t), pointer :: numbers(:)
    integer(c_int) :: code
    code = c_local(tensor%handle, host)
    if (code == dtensor_ok .and. host%ndim <= size(local%sizes)) then
      local%address = host%data
      local%dtype = host%dtype
      local%ndim = host%ndim
      call c_f_pointer(host%sizes, numbers, [host%ndim])
      local%sizes(:host%ndim) = numbers
      call c_f_pointer(host%strides, numbers, [host%ndim])
      local%strides(:host%ndim) = numbers
    end if
    call finish(code, status)
  end subroutine

  subroutine dtensor_redistribute(tensor, placements, result, status)
    type(dtensor_tensor), intent(in) :: tensor
    character(len=*), intent(in) :: placements
    type(dtensor_tensor), intent(inout) :: result
    integer, intent(out), optional :: status
    call finish(c_redistribute(tensor%handle, c_text(placements), result%handle), status)
  end subroutine

  ! A copy on a mesh of the same shape: between host memory and a device.
  subroutine dtensor_to_mesh(tensor, mesh, result, status)
    type(dtensor_tensor), intent(in) :: tensor
    type(dtensor_mesh), intent(in) :: mesh
    type(dtensor_tensor), intent(inout) :: result
    integer, intent(out), optional :: status
    call finish(c_to_mesh(tensor%handle, mesh%handle, result%handle), status)
  end subroutine

  subroutine dtensor_copy_full(tensor, array, status)
    type(dtensor_tensor), intent(in) :: tensor
    type(dtensor_array), intent(in), target :: array
    integer, intent(out), optional :: status
    call finish(c_copy_full(tensor%handle, described(array)), status)
  end subroutine

  subroutine dtensor_copy(to, from, status)
    type(dtensor_tensor), intent(in) :: to, from
    integer, intent(out), optional :: status
    call finish(c_copy(to%handle, from%handle), status)
  end subroutine

  subroutine dtensor_item(tensor, number, status)
    type(dtensor_tensor), intent(in) :: tensor
    real(c_double), intent(inout) :: number
    integer, intent(out), optional :: status
    call finish(c_item(tensor%handle, number), status)
  end subroutine

  ! `operands`: one or two tensors, or more for 'cat'.
  subroutine dtensor_compute(name, operands, result, status)
    character(len=*), intent(in) :: name
    type(dtensor_tensor), intent(in) :: operands(:)
    type(dtensor_tensor), intent(inout) :: result
    integer, intent(out), optional :: status
    call finish(c_compute(c_text(name), int(size(operands), c_int), operands%handle, result%handle), status)
  end subroutine

  ! Gradients, modules, optimizers and checkpoints; graphs.
  include 'dtensor_training.inc'
  include 'dtensor_graph.inc'
end module
