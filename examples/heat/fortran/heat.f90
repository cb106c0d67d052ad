! The program of ../cpp/heat.cpp in Fortran: a solver of the heat equation u_t = (k(u) u_x)_x + s(x, t) that owns MPI
! and trains a model of the coefficient k while it runs. It then goes on with the model alone, and with a constant
! coefficient for comparison. The field and the model have the same bits on any number of ranks.
!
!   mpirun -n 4 heat_fortran [STEPS] [CELLS]
!
! The domain is periodic; each rank owns cells / ranks cells, and the face at the left of each. The model sees the
! fields of faces in the solver's own arrays. The program stops with an error if the model is not far better than the
! constant.
module heat_solver
  use, intrinsic :: iso_c_binding, only: real64 => c_double
  use mpi_f08
  use dtensor
  implicit none

  real(real64), parameter :: mean_coefficient = 0.6_real64

  type solver
    type(MPI_Comm) :: comm
    integer :: rank, ranks
    real(real64) :: width, time_step, time = 0
    ! Temperature and position of cells; temperature and coefficient at faces; flux at faces.
    real(real64), allocatable :: u(:), x(:), faces(:, :), k(:, :), flux(:)
    type(dtensor_tensor) :: faces_tensor, k_tensor  ! over the arrays of faces
  end type

contains

  subroutine create(s, comm, mesh, cells)
    type(solver), intent(out), target :: s
    type(MPI_Comm), intent(in) :: comm
    type(dtensor_mesh), intent(in) :: mesh
    integer, intent(in) :: cells
    integer :: i, own
    s%comm = comm
    call MPI_Comm_rank(comm, s%rank)
    call MPI_Comm_size(comm, s%ranks)
    own = cells / s%ranks
    s%width = 2 * acos(-1.0_real64) / cells
    s%time_step = 0.2_real64 * s%width**2
    s%x = [(s%width * (i - 1 + s%rank * own), i=1, own)]
    s%u = sin(s%x) + 0.3_real64 * cos(2 * s%x)
    allocate (s%faces(own, 1), s%k(own, 1), source=0.0_real64)
    call dtensor_from_host(mesh, dtensor_view(s%faces), '[S(0)]', s%faces_tensor)
    call dtensor_from_host(mesh, dtensor_view(s%k), '[S(0)]', s%k_tensor)
  end subroutine

  ! Sets the temperature and the time to those of another solver.
  subroutine continue_from(s, other)
    type(solver), intent(inout) :: s
    type(solver), intent(in) :: other
    s%u = other%u
    s%time = other%time
  end subroutine

  subroutine destroy(s)
    type(solver), intent(inout) :: s
    call dtensor_free(s%faces_tensor)
    call dtensor_free(s%k_tensor)
  end subroutine

  ! Sends a value to the next (1) or previous (-1) rank and receives that of the other neighbor.
  real(real64) function exchange(s, number, direction) result(received)
    type(solver), intent(in) :: s
    real(real64), intent(in) :: number
    integer, intent(in) :: direction
    call MPI_Sendrecv(number, 1, MPI_DOUBLE_PRECISION, modulo(s%rank + direction, s%ranks), 0, received, 1, &
                      MPI_DOUBLE_PRECISION, modulo(s%rank - direction, s%ranks), 0, s%comm, MPI_STATUS_IGNORE)
  end function

  ! The temperature of the neighbor at the left of each cell.
  function at_left(s) result(left)
    type(solver), intent(in) :: s
    real(real64) :: left(size(s%u))
    left = [exchange(s, s%u(size(s%u)), 1), s%u(:size(s%u) - 1)]
  end function

  subroutine compute_faces(s)
    type(solver), intent(inout) :: s
    s%faces(:, 1) = (at_left(s) + s%u) / 2
    call dtensor_increment_version(s%faces_tensor)
  end subroutine

  subroutine exact_coefficients(s)
    type(solver), intent(inout) :: s
    s%k = 0.2_real64 + 0.8_real64 * s%faces**2
    call dtensor_increment_version(s%k_tensor)
  end subroutine

  ! The result of the model, in the array of coefficients.
  subroutine model_coefficients(s, model)
    type(solver), intent(in) :: s
    type(dtensor_module), intent(in) :: model
    type(dtensor_tensor) :: prediction
    call dtensor_forward_no_grad(model, s%faces_tensor, prediction)
    call dtensor_copy(s%k_tensor, prediction)
    call dtensor_free(prediction)
  end subroutine

  ! Updates the temperature with the coefficients.
  subroutine advance(s)
    type(solver), intent(inout) :: s
    real(real64) :: right(size(s%u))
    s%flux = s%k(:, 1) * (s%u - at_left(s)) / s%width
    right = [s%flux(2:), exchange(s, s%flux(1), -1)]
    s%u = s%u + s%time_step * ((right - s%flux) / s%width + 2 * sin(s%x - 2 * s%time))
    s%time = s%time + s%time_step
  end subroutine

  ! The largest difference between the temperatures of two solvers, over all ranks.
  real(real64) function difference(a, b) result(largest)
    type(solver), intent(in) :: a, b
    call MPI_Allreduce(maxval(abs(a%u - b%u)), largest, 1, MPI_DOUBLE_PRECISION, MPI_MAX, a%comm)
  end function

  ! One optimizer step for the coefficients of the solver's current step.
  subroutine train_step(s, model, optimizer, number)
    type(solver), intent(in) :: s
    type(dtensor_module), intent(in) :: model
    type(dtensor_optimizer), intent(in) :: optimizer
    real(real64), intent(inout) :: number
    type(dtensor_tensor) :: prediction, loss
    call dtensor_zero_grad(optimizer)
    call dtensor_forward(model, s%faces_tensor, prediction)
    call dtensor_mse_loss(prediction, s%k_tensor, loss)
    call dtensor_backward(loss)
    call dtensor_step(optimizer)
    call dtensor_item(loss, number)
    call dtensor_free(prediction)
    call dtensor_free(loss)
  end subroutine
end module

program heat_fortran
  use heat_solver
  implicit none

  type(solver), target :: exact, modeled, constant
  type(dtensor_mesh) :: mesh
  type(dtensor_module) :: model
  type(dtensor_optimizer) :: optimizer
  type(dtensor_tensor) :: field, hidden_weights
  character(len=:), allocatable :: hash
  integer :: i, steps, cells, provided, rank, ranks
  real(real64) :: loss, error, reference

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  steps = argument(1, 600)
  cells = argument(2, 64)
  if (steps < 1 .or. cells < 1 .or. modulo(cells, ranks) /= 0) then
    error stop 'heat_fortran: expected STEPS > 0 and CELLS > 0, a multiple of the number of ranks'
  end if
  call dtensor_mesh_from_mpi(MPI_COMM_WORLD%mpi_val, [ranks], mesh)
  call dtensor_set_bit_identical(mesh, block=16)  ! sums of blocks of 16 cells, which a rank should not divide
  call dtensor_module_create(mesh, 'Perceptron', [1, 16, 16, 1], model, activation='tanh', seed=7)
  call dtensor_optimizer_adamw(model, 5e-3_real64, optimizer, weight_decay=0.0_real64)
  call create(exact, MPI_COMM_WORLD, mesh, cells)
  call create(modeled, MPI_COMM_WORLD, mesh, cells)
  call create(constant, MPI_COMM_WORLD, mesh, cells)
  do i = 1, steps
    call compute_faces(exact)
    call exact_coefficients(exact)
    call train_step(exact, model, optimizer, loss)
    call advance(exact)
  end do
  call continue_from(modeled, exact)
  call continue_from(constant, exact)
  do i = 1, steps / 2
    call compute_faces(exact)
    call exact_coefficients(exact)
    call advance(exact)
    call compute_faces(modeled)
    call model_coefficients(modeled, model)
    call advance(modeled)
    call compute_faces(constant)
    constant%k = mean_coefficient
    call advance(constant)
  end do
  error = difference(modeled, exact)
  reference = difference(constant, exact)
  if (rank == 0) print '(3(a, es13.6))', 'loss ', loss, ', error with the model ', error, &
                       ', with a constant coefficient ', reference
  call dtensor_from_host(mesh, dtensor_view(modeled%u), '[S(0)]', field)
  call dtensor_content_hash(field, hash)
  if (rank == 0) print '(2a)', 'SHA-256 of the field ', hash
  call dtensor_parameter(model, 3, hidden_weights)
  call dtensor_content_hash(hidden_weights, hash)
  if (rank == 0) print '(2a)', 'SHA-256 of the model ', hash
  call dtensor_free(field)
  call dtensor_free(hidden_weights)
  call destroy(exact)
  call destroy(modeled)
  call destroy(constant)
  call dtensor_free(optimizer)
  call dtensor_free(model)
  call dtensor_free(mesh)
  call MPI_Finalize()
  if (error >= reference / 5) error stop 1

contains

  integer function argument(index, default)
    integer, intent(in) :: index, default
    character(len=32) :: text
    argument = default
    if (command_argument_count() < index) return
    call get_command_argument(index, text)
    read (text, *) argument
  end function
end program
